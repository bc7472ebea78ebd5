#!/usr/bin/env node
"use strict";
// `npx holdfast …` in this repository, on whichever Node is installed.
const path = require("node:path");

// A command is short: half of its time would go into reading the sources again.
if (process.env.NODE_COMPILE_CACHE === undefined) {
  process.env.NODE_COMPILE_CACHE = path.join(__dirname, "../node_modules/.cache/holdfast");
}
process.argv.splice(2, 0, path.join(__dirname, "main.ts"));
require("../tools/run.cjs");
