import { spawnSync } from 'node:child_process';
import { expect } from 'chai';

const hotCode = new URL('../../supervisors/hot-code.js', import.meta.url).href;

/** Which calls of a small function, of the first few thousand, V8 ran as optimized code first. */
function optimizedAfter(before: string): { readonly calls: number; readonly stderr: string } {
  const script = `
    ${before}
    const work = (list) => { let sum = 0; for (const each of list) sum += each * 3; return sum; };
    let calls = 0;
    const isOptimized = new Function('f', 'return (%GetOptimizationStatus(f) & 48) !== 0');
    const step = () => {
      for (let i = 0; i < 50; i++) { work([1, 2, 3]); calls++; if (isOptimized(work)) break; }
      if (isOptimized(work) || calls > 100_000) console.log(calls);
      else setImmediate(step);
    };
    step();`;
  const { stdout, stderr } = spawnSync(
    process.execPath,
    // Compiled at once: how many calls a busy machine gets through meanwhile is no measure.
    ['--allow-natives-syntax', '--no-concurrent-recompilation', '--input-type=module', '-e', script],
    // Coverage counts calls of its own.
    { encoding: 'utf8', timeout: 30_000, env: { ...process.env, NODE_V8_COVERAGE: '' } },
  );
  return { calls: Number(stdout), stderr };
}

describe('hot code', () => {
  it('is optimized after fewer calls, by a flag that this version of V8 knows', () => {
    const usual = optimizedAfter('');
    const sooner = optimizedAfter(`(await import(${JSON.stringify(hotCode)})).warmUpSooner();`);
    expect(sooner.stderr).to.equal('');
    expect(sooner.calls).to.be.greaterThan(0);
    expect(sooner.calls).to.be.lessThan(usual.calls * 0.75);
  });
});
