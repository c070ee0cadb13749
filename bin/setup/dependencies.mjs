// The npm packages of the lock file.
import { existsSync } from 'node:fs';
import { inClone, readText } from './clone.mjs';
import { run } from './processes.mjs';
import { SetupError } from './report.mjs';

/** Optional for npm, since each suits one kind of processor; of the two, this one must be there. */
const LIBLLAMA = `node_modules/@node-llama-cpp/linux-${process.arch}`;

export const dependencies = {
  name: 'npm packages',
  needs: [],
  /** npm writes what it installed to a hidden lock file; comparing that also accepts a developer's own `npm install`. */
  upToDate() {
    const wanted = packagesOf(inClone('package-lock.json'));
    const installed = packagesOf(inClone('node_modules/.package-lock.json'));
    if (!wanted || !installed) return false;
    return Object.entries(wanted).every(([path, { version, optional }]) => {
      if (path === '') return true;
      if (optional && path !== LIBLLAMA && !installed[path]) return true;
      return installed[path]?.version === version && existsSync(inClone(path));
    });
  },
  async run({ report }) {
    // No package here needs its install script: the native parts come prebuilt, or are built by the next steps.
    const npm = process.env.npm_execpath ? [process.execPath, process.env.npm_execpath] : ['npm'];
    const args = ['ci', '--ignore-scripts', '--include=dev', '--include=optional', '--no-audit', '--no-fund'];
    await run(npm[0], [...npm.slice(1), ...args], { cwd: inClone(), show: report.live });
    if (!existsSync(inClone(LIBLLAMA))) {
      throw new SetupError(`npm skipped ${LIBLLAMA.slice('node_modules/'.length)}: run the same command again`);
    }
    return 'installed';
  },
};

function packagesOf(file) {
  const text = readText(file);
  return text && JSON.parse(text).packages;
}
