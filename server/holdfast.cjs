#!/usr/bin/env node
"use strict";
// `npx holdfast …` in this repository, on whichever Node is installed.
const path = require("node:path");

process.argv.splice(2, 0, path.join(__dirname, "main.ts"));
require("../tools/run.cjs");
