"use strict";
// Runs a program of this repository on a Node that can run it.
//
//   node tools/run.cjs server/main.ts serve      a TypeScript or JavaScript file of the repository
//   node tools/run.cjs --bin vitest run          a program that an installed package brings
//
// Written for any Node since 12, because the Node that starts it may be the old one. A Node that is new
// enough is used as it is and nothing is installed. Otherwise Node 24 is installed once from the npm
// registry into tools/node (plain platform packages, pinned by their own lock file, no install script)
// and put first on PATH, so that child processes find the same one.
const { spawn, spawnSync } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");

const root = path.resolve(__dirname, "..");
const runtimeFolder = path.join(__dirname, "node");
const oldestSupported = [22, 18];

function isSupported(version) {
  const [major, minor] = version.replace(/^v/, "").split(".").map(Number);
  return major > oldestSupported[0] || (major === oldestSupported[0] && minor >= oldestSupported[1]);
}

function fail(message) {
  process.stderr.write(`holdfast: ${message}\n`);
  process.exit(1);
}

function installedNode() {
  const arch = process.arch === "x64" || process.arch === "arm64" ? process.arch : undefined;
  if (process.platform !== "linux" || arch === undefined) {
    fail(
      `Node ${oldestSupported.join(".")} or newer is needed and this is ${process.version}. ` +
        "Install a current Node from nodejs.org (or with nvm, fnm or your package manager) and run the command again.",
    );
  }
  return path.join(runtimeFolder, "node_modules", `node-linux-${arch}`, "bin", "node");
}

// Two commands may start at once on a fresh clone. The install goes to a folder of its own and is renamed
// into place; whoever comes second finds it there and throws its own copy away.
function installNode(binary) {
  process.stderr.write(`holdfast: this is Node ${process.version}; installing Node 24 for this folder only …\n`);
  const staging = fs.mkdtempSync(path.join(runtimeFolder, ".install-"));
  try {
    for (const file of ["package.json", "package-lock.json", ".npmrc"]) {
      fs.copyFileSync(path.join(runtimeFolder, file), path.join(staging, file));
    }
    const npmArguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    const npm = spawnSync("npm", npmArguments, { cwd: staging, stdio: ["ignore", "ignore", "inherit"] });
    if (npm.status !== 0) fail("Node 24 could not be installed from the npm registry; see the message above.");
    try {
      fs.renameSync(path.join(staging, "node_modules"), path.join(runtimeFolder, "node_modules"));
    } catch (error) {
      if (!fs.existsSync(binary)) throw error;
    }
  } finally {
    fs.rmSync(staging, { recursive: true, force: true });
  }
  if (!fs.existsSync(binary)) fail(`Node 24 was installed but ${binary} is missing.`);
}

function nodeBinary() {
  if (isSupported(process.version)) return process.execPath;
  const binary = installedNode();
  if (!fs.existsSync(binary)) installNode(binary);
  return binary;
}

function programFile(args) {
  if (args[0] !== "--bin") return [path.resolve(root, args[0]), ...args.slice(1)];
  const link = path.join(root, "node_modules", ".bin", args[1]);
  if (!fs.existsSync(link)) fail(`node_modules/.bin/${args[1]} is missing; run npm ci first.`);
  return [fs.realpathSync(link), ...args.slice(2)];
}

function main() {
  const args = process.argv.slice(2);
  if (args.length === 0 || (args[0] === "--bin" && args.length === 1)) {
    fail("usage: node tools/run.cjs FILE [ARGUMENT …] or node tools/run.cjs --bin PROGRAM [ARGUMENT …]");
  }
  const node = nodeBinary();
  const env = { ...process.env, PATH: `${path.dirname(node)}${path.delimiter}${process.env.PATH || ""}` };
  const child = spawn(node, ["--conditions=holdfast-source", ...programFile(args)], { stdio: "inherit", env });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("error", (error) => fail(`${node} could not be started: ${error.message}`));
  child.on("exit", (code, signal) => {
    if (signal === null) process.exit(code);
    for (const name of ["SIGINT", "SIGTERM", "SIGHUP"]) process.removeAllListeners(name);
    process.kill(process.pid, signal);
  });
}

main();
