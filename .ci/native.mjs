// The C++ tests of the engine core, built with a fake libllama and run under AddressSanitizer and ThreadSanitizer.
import { availableParallelism } from 'node:os';
import { basename, join } from 'node:path';
import { openCache } from '../bin/setup/cache.mjs';
import { filesBelow, root } from '../bin/setup/clone.mjs';
import { headersFolder } from '../bin/setup/headers.mjs';
import { probe } from '../bin/setup/processes.mjs';

const SANITIZERS = {
  address: {
    ASAN_OPTIONS: 'detect_leaks=1:strict_string_checks=1',
    UBSAN_OPTIONS: 'halt_on_error=1:print_stacktrace=1',
  },
  thread: { TSAN_OPTIONS: 'halt_on_error=1:second_deadlock_stack=1' },
};

/** `command(program, args, env)` runs a program with its output shown and says whether it ended well. */
export async function nativeTests(command) {
  const source = join(root, 'gpu/native');
  const tests = filesBelow(join(source, 'test'), (path) => /^[^/]+_test\.cc$/.test(path)).map((path) =>
    basename(path, '.cc'),
  );
  // Sanitizers recommend -O1, and it compiles in half the time of -O2.
  const settings = [
    `-DDYNACT_LLAMA_HEADERS=${headersFolder(openCache())}`,
    '-DCMAKE_BUILD_TYPE=Debug',
    '-DCMAKE_CXX_FLAGS_DEBUG=-O1',
  ];
  let held = tests.length > 0;
  for (const [sanitizer, env] of Object.entries(SANITIZERS)) {
    const build = join(root, '.build', `native-${sanitizer}`);
    const built =
      (await command('cmake', [
        '-S',
        source,
        '-B',
        build,
        '--log-level=WARNING',
        `-DDYNACT_SANITIZE=${sanitizer}`,
        ...settings,
      ])) &&
      (await command('cmake', [
        '--build',
        build,
        '--parallel',
        `${availableParallelism()}`,
        '--target',
        ...tests,
        '--',
        '--quiet',
      ]));
    if (!built) return false;
    const launcher = await withoutAddressRandomisation();
    for (const test of tests) {
      console.log(`-- ${test} (${sanitizer})`);
      const [program, ...args] = [...launcher, join(build, test)];
      held = (await command(program, args, env)) && held;
    }
  }
  return held;
}

/** ThreadSanitizer of older compilers cannot start where the kernel randomises addresses widely; some containers forbid turning it off. */
async function withoutAddressRandomisation() {
  const launcher = ['setarch', '--addr-no-randomize'];
  return (await probe(launcher[0], [...launcher.slice(1), 'true'])) === undefined ? [] : launcher;
}
