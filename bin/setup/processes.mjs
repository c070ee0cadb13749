// Runs the programs that set-up needs.
import { execFile, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { SetupError } from './report.mjs';

/** How much of a failed program's output is worth showing. */
const TAIL_LINES = 25;

/** On a busy machine `pip --version` alone has taken 10 s; a tool that is there must not be called missing. */
const PROBE_MS = 60_000;

/** What `command --version` or the like prints, or undefined if it cannot be run. */
export function probe(command, args) {
  return new Promise((resolve) => {
    execFile(command, args, { timeout: PROBE_MS }, (error, stdout, stderr) =>
      resolve(error ? undefined : `${stdout}${stderr}`),
    );
  });
}

/**
 * Runs a program to its end; with `show` its output goes to the terminal, else it is shown only if it fails. `onLine` gets each
 * line of its stdout.
 */
export function run(command, args, { cwd, env, show = false, onLine } = {}) {
  return new Promise((resolve, reject) => {
    const stdio = ['ignore', show ? 2 : 'pipe', show ? 2 : 'pipe'];
    const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio });
    let output = '';
    const keep = (chunk) => {
      output = (output + chunk).slice(-64 * 1024);
    };
    child.stdout?.on('data', keep);
    if (onLine && child.stdout) createInterface({ input: child.stdout }).on('line', onLine);
    child.stderr?.on('data', keep);
    child.on('error', (error) => reject(new SetupError(`${command} cannot be run: ${error.message}`)));
    child.on('close', (code, signal) => {
      if (code === 0) return resolve(output);
      const tail = output.trimEnd().split('\n').slice(-TAIL_LINES).join('\n');
      reject(new SetupError(`${command} ${args.join(' ')} failed (${signal ?? `exit code ${code}`})\n${tail}`));
    });
  });
}
