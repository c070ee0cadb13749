/**
 * When V8 compiles what it runs often. By default a function is optimized after some thousands of calls, which a server that
 * nobody hurries reaches after thousands of requests; until then each takes twice as long (docs/benchmarks.md). Here a few hundred are
 * enough. Called when a process has started: what only starting runs is not worth compiling.
 */
import { setFlagsFromString } from 'node:v8';

/** Bytecodes that a function runs between two looks at it; V8's default is 67,584. */
const bytecodes = '--interrupt-budget=6000';
/** The same as calls, by which newer versions count; the default is 3,000. */
const calls = '--invocation-count-for-turbofan=300';

export function warmUpSooner(): void {
  const v8 = Number.parseInt(process.versions.v8, 10);
  setFlagsFromString(v8 < 12 ? bytecodes : calls);
}
