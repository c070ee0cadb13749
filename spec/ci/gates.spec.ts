import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { packageRoot } from '../bin/package-root.js';

interface Layers {
  misplacedImports(path: string, text: string): string[];
}

describe('quality gates', () => {
  describe('layers', () => {
    let layers: Layers;

    before(async () => {
      layers = (await import(pathToFileURL(join(packageRoot(), '.ci/layers.mjs')).href)) as Layers;
    });

    it('let a folder import what is below it through index.ts, and anything of its own', () => {
      const text = [
        "import type { Bus } from '../../transport/index.js';",
        "import { gpu } from '../gpu/gpu.js';",
        "export { router } from './router.js';",
        "import { expect } from 'chai';",
      ].join('\n');
      expect(layers.misplacedImports('actors/router/index.ts', text)).to.deep.equal([]);
    });

    it('report an import upwards, past an index.ts, and one that is dynamic or only re-exports', () => {
      const faults = (path: string, text: string) => layers.misplacedImports(path, text).length;
      expect(faults('actors/frontend/x.ts', "import { a } from '../../gateway/index.js';")).to.equal(1);
      expect(faults('transport/x.ts', "import type { Engine } from '../gpu/index.js';")).to.equal(1);
      expect(faults('gateway/x.ts', "import {\n  a,\n} from '../actors/frontend/x.js';")).to.equal(1);
      expect(faults('gateway/x.ts', "const a = await import('../supervisors/index.js');")).to.equal(1);
      expect(faults('gpu/x.ts', "export { a } from '../transport/address.js';")).to.equal(1);
      expect(faults('gpu/x.ts', "import '../actors/index.js';")).to.equal(1);
    });
  });

  describe('lint', () => {
    let folder: string;

    beforeEach(() => {
      folder = mkdtempSync(join(tmpdir(), 'dynact-lint-'));
      const root = packageRoot();
      cpSync(join(root, 'biome.json'), join(folder, 'biome.json'));
      cpSync(join(root, '.ci/rules'), join(folder, '.ci/rules'), { recursive: true });
      symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
    });

    afterEach(() => {
      rmSync(folder, { recursive: true });
    });

    /** Lints one file by the rules of this clone; returns "line category". */
    const lint = async (path: string, lines: readonly string[]): Promise<string[]> => {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), `${lines.join('\n')}\n`);
      const biome = join(packageRoot(), 'node_modules/@biomejs/biome/bin/biome');
      const args = [biome, 'lint', '--vcs-enabled=false', '--reporter=github', '--colors=off', path];
      const output = await new Promise<string>((resolve) => {
        execFile(process.execPath, args, { cwd: folder }, (_, stdout) => resolve(stdout));
      });
      return [...output.matchAll(/title=([^,]+),.*?line=(\d+),/g)].map(([, rule, line]) => `${line} ${rule}`).sort();
    };

    it('find no fault with a synchronous behaviour that takes the world from ctx', async () => {
      expect(await lint('actors/router/x.ts', ['export const behave = (n: number) => n + 1;'])).to.deep.equal([]);
    });

    it('ban clocks, random numbers, timers and async functions in actors', async () => {
      const faults = await lint('actors/router/x.ts', [
        'export const now = Date.now();',
        'export const date = new Date();',
        'export const chance = Math.random();',
        'export const timer = setTimeout(() => {}, 1);',
        'export const arrow = async () => 1;',
        'export async function declared() {}',
        'export class C {',
        '  async method() {}',
        '}',
      ]);
      expect(faults).to.deep.equal([
        '1 plugin',
        '2 plugin',
        '3 plugin',
        '4 lint/style/noRestrictedGlobals',
        '5 plugin',
        '6 plugin',
        '8 plugin',
      ]);
    });

    it('ban the ambient world in scenarios, where waiting is allowed', async () => {
      const faults = await lint('scenarios/x.ts', [
        'export const now = Date.now();',
        'export const run = async () => 1;',
      ]);
      expect(faults).to.deep.equal(['1 plugin']);
    });

    it('find a promise that nobody waits for', async () => {
      const faults = await lint('gateway/x.ts', [
        'async function send() {}',
        'export function go() {',
        '  send();',
        '}',
      ]);
      expect(faults).to.deep.equal(['3 lint/nursery/noFloatingPromises']);
    });
  });
});
