// The native addon: gpu/native built by cmake-js against Node-API, so nothing is downloaded from nodejs.org.
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { stampOf, writeAtomic } from './cache.mjs';
import { filesBelow, inClone, readText, signature } from './clone.mjs';
import { headersFolder } from './headers.mjs';
import { run } from './processes.mjs';

const BUILD = inClone('gpu/native/build');
const ADDON = inClone('gpu/native/build/Release/dynact.node');
const STAMP = inClone('gpu/native/build/set-up.stamp');

export const addon = {
  name: 'native addon',
  after: ['dependencies', 'headers'],
  needs: ['cmake', 'a C++ compiler', 'make or ninja'],
  upToDate: ({ cache }) => existsSync(ADDON) && readText(STAMP) === stamp(cache),
  async run({ cache, report }) {
    const folder = headersFolder(cache);
    // A build folder configured for another place, Node or header set is worth nothing.
    if (!readText(STAMP)?.startsWith(surroundings(cache))) rmSync(BUILD, { recursive: true, force: true });
    mkdirSync(BUILD, { recursive: true });
    await run(
      process.execPath,
      [
        inClone('node_modules/cmake-js/bin/cmake-js'),
        'build',
        ...['--directory', inClone('gpu/native'), '--out', BUILD, '--config', 'Release'],
        ...['--parallel', String(availableParallelism()), `--CDDYNACT_LLAMA_HEADERS=${folder}`],
      ],
      { cwd: inClone(), show: report.live && Boolean(process.env.DYNACT_SETUP_VERBOSE) },
    );
    writeAtomic(STAMP, stamp(cache));
    return 'built';
  },
};

function stamp(cache) {
  const built = existsSync(ADDON) ? stampOf(ADDON) : '';
  return [surroundings(cache), signature(sources()), built].join('\n');
}

function surroundings(cache) {
  const addonApi = readText(inClone('node_modules/node-addon-api/package.json'));
  const version = addonApi && JSON.parse(addonApi).version;
  return [BUILD, process.arch, process.versions.modules, version, headersFolder(cache)].join(' ');
}

function sources() {
  const wanted = (path) => /(^CMakeLists\.txt|^package\.json|\.(h|hpp|cc|cpp|c|cmake))$/.test(path);
  return filesBelow(inClone('gpu/native'), wanted, ['build', 'test']);
}
