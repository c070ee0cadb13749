// `npm test`: every quality gate, one after the other, all of them even if one fails. The last line is the count.
//   node .ci/test.mjs [gate …]   runs only these
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root } from '../bin/setup/clone.mjs';
import { typescript } from '../bin/setup/typescript.mjs';
import { checkLayers } from './layers.mjs';
import { nativeTests } from './native.mjs';

/** A gate that takes longer hangs. */
const GATE_MS = 30 * 60_000;

const bin = (name) => join(root, 'node_modules', name);
const work = mkdtempSync(join(tmpdir(), 'dynact-test-'));
const counts = { passed: 0, failed: 0, skipped: 0 };

/** Each returns true if it holds; what it prints is for the person who has to fix it. */
const gates = {
  /** The build of set-up has checked the types of what it was made from. */
  types: () => typescript.upToDate() || node(bin('typescript/bin/tsc'), '-p', 'tsconfig.json', '--noEmit'),
  lint: () => node(bin('@biomejs/biome/bin/biome'), 'check', '--error-on-warnings', '--max-diagnostics=50', '.'),
  layers() {
    const faults = checkLayers();
    for (const fault of faults) console.error(fault);
    return faults.length === 0;
  },
  unused: () => node(bin('knip/bin/knip.js'), '--no-progress'),
  native: () => nativeTests(command),
  async specs() {
    if (!typescript.upToDate()) throw new Error('dist is not built from these sources: npm run build');
    const file = join(work, 'counts.json');
    const coverage = ['--reporter=text-summary', '--reporter=lcovonly', '--temp-directory', join(work, 'coverage')];
    const mocha = [bin('mocha/bin/mocha.js'), '--reporter', join(root, '.ci/reporter.cjs'), 'dist/spec/**/*.spec.js'];
    const held = await command(process.execPath, [bin('c8/bin/c8.js'), ...coverage, process.execPath, ...mocha], {
      DYNACT_SPEC_COUNTS: file,
    });
    try {
      const { passed, failed, skipped } = JSON.parse(readFileSync(file, 'utf8'));
      counts.passed += passed;
      counts.failed += failed;
      counts.skipped += skipped;
      // Specs that fail are counted one by one; anything else that went wrong is counted by the caller.
      return (held && passed > 0) || failed > 0;
    } catch {
      return false; // the run ended before its last spec
    }
  },
};

const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !(name in gates));
if (unknown.length > 0) {
  console.error(`no such gate: ${unknown.join(', ')} (there are ${Object.keys(gates).join(', ')})`);
  process.exit(2);
}

const summary = [];
for (const name of asked.length > 0 ? asked : Object.keys(gates)) {
  console.log(`\n== ${name}`);
  const begun = Date.now();
  const failedBefore = counts.failed;
  const held = await holds(gates[name]);
  if (!held) counts.failed += 1;
  else if (name !== 'specs') counts.passed += 1;
  const verdict = counts.failed > failedBefore ? 'FAILED' : 'ok';
  summary.push(`${verdict.padEnd(6)} ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
}
rmSync(work, { recursive: true, force: true });
console.log(`\n${summary.join('\n')}`);
console.log(`\n${counts.passed} passed, ${counts.failed} failed${counts.skipped ? `, ${counts.skipped} skipped` : ''}`);
process.exitCode = counts.failed > 0 ? 1 : 0;

async function holds(gate) {
  try {
    return await gate();
  } catch (error) {
    console.error(error);
    return false;
  }
}

function node(...args) {
  return command(process.execPath, args);
}

/** Runs a program with its output shown; true if it ends well in time. Whatever it has started ends with it. */
function command(program, args, env = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'inherit', 'inherit'],
      detached: true,
    });
    const timer = setTimeout(() => {
      console.error(`${program} ${args.join(' ')}: no end after ${GATE_MS / 60_000} minutes`);
      endGroup(child.pid);
    }, GATE_MS);
    const interrupt = () => endGroup(child.pid);
    process.once('SIGINT', interrupt).once('SIGTERM', interrupt);
    child.on('error', (error) => console.error(`${program}: ${error.message}`));
    child.on('close', (code) => {
      clearTimeout(timer);
      process.off('SIGINT', interrupt).off('SIGTERM', interrupt);
      resolve(code === 0);
    });
  });
}

function endGroup(pid) {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // it has just ended
  }
}
