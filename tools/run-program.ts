import { spawn } from "node:child_process";

/**
 * Runs a program and resolves with its standard output. The event loop goes on meanwhile, so that servers of this
 * process can answer it. Rejects with everything it wrote if it fails.
 */
export function runProgram(program: string, args: readonly string[], cwd: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      cwd,
      // The conditions of this repository must not reach a program that stands for somebody else's.
      env: { ...process.env, NODE_OPTIONS: "" },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let stdout = "";
    let all = "";
    child.stdout.on("data", (chunk: Buffer) => {
      stdout += chunk.toString();
      all += chunk.toString();
    });
    child.stderr.on("data", (chunk: Buffer) => {
      all += chunk.toString();
    });
    child.on("error", reject);
    child.on("close", (code) => {
      if (code === 0) resolve(stdout);
      else reject(new Error(`${program} ${args.join(" ")} failed with ${String(code)}\n${all}`));
    });
  });
}
