import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { quietNode, readScenario, reportOf, runScenario, scenarioNames, type Verdict } from '../../scenarios/index.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));

interface Ran {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

function dynact(...args: string[]): Promise<Ran> {
  return new Promise((resolve) => {
    execFile(process.execPath, [cli, ...args], { timeout: 150_000, maxBuffer: 2 ** 26 }, (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code ?? 1), stdout, stderr }),
    );
  });
}

describe('Scenarios on real processes', function () {
  this.timeout(160_000);
  let folder: string;
  // A module is read once: each plot has a file of its own.
  let plots = 0;

  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'dynact-scenarios-'));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  const file = (name: string, text: string) => {
    const path = join(folder, name);
    writeFileSync(path, text);
    return path;
  };

  it('are more than twenty, each with a title of its own', async () => {
    const all = await Promise.all(scenarioNames().map(readScenario));
    expect(all.length).to.be.greaterThan(20);
    expect(new Set(all.map(({ title }) => title)).size).to.equal(all.length);
  });

  it('pass for a killed worker and a damaged block, say where the tape is, and write a page that needs nothing else', async () => {
    const report = join(folder, 'report.html');
    const { code, stdout, stderr } = await dynact(
      ...['scenario', 'run', 'decode-killed', 'corrupt-kv-block'],
      ...['--report', report, '--tapes', folder, '--json'],
    );
    const verdicts = JSON.parse(stdout) as Verdict[];
    expect(verdicts.map(({ name, verdict, why }) => [name, verdict, why])).to.deep.equal([
      ['decode-killed', 'passed', ''],
      ['corrupt-kv-block', 'passed', ''],
    ]);
    expect(code).to.equal(0);
    expect(stderr).to.contain('decode-killed: passed; tape ');
    expect(verdicts[0]?.tape).to.equal(join(folder, 'decode-killed.tape'));
    expect(readFileSync(verdicts[0]?.tape as string).length).to.be.greaterThan(0);
    const html = readFileSync(report, 'utf8');
    expect(html.match(/<svg /g)).to.have.length(2);
    expect(html.match(/<svg /g)?.length).to.equal(html.match(/<\/svg>/g)?.length);
    expect(html).to.contain('prefers-color-scheme:dark');
    expect(html).not.to.match(/<script|src=|https?:/);
  });

  it('fail with exit code 1 and the step that failed', async () => {
    const path = file(
      'wrong.mjs',
      `export default { title: 'x', after: '', async tell(story) {
        await story.startNode({ prefill: 1, decode: 1 });
        await story.runLoad({ streams: 2, tokens: 5 });
        await story.expectRefused(/529/, 1);
      } }`,
    );
    const { code, stdout } = await dynact('scenario', 'run', path, '--tapes', folder);
    expect(code).to.equal(1);
    expect(stdout).to.match(/wrong +failed .*0 were refused, at least 1 are wanted/);
  });

  const run = async (text: string, node?: string) =>
    runScenario(await readScenario(file(`plot-${++plots}.mjs`, text)), {
      ...{ seed: 1, tapes: folder, progress: () => {}, node, quiet: quietNode().stage },
    });
  const message = (work: Promise<unknown>) => work.then(String, (error: Error) => error.message);

  it('with a step that there is not are refused by the name of the step and of the file', async () => {
    const said = await message(run(`export default { title: 'x', tell: (story) => story.explode() }`));
    expect(said).to.match(/^SCN_NO_STEP: .*plot-\d+\.mjs has an unknown step: explode; there are startNode, /);
  });

  it('that begin without a node, or expect nothing, fail and say so', async () => {
    const { verdict, why } = await run(`export default { title: 'x', tell: (story) => story.runLoad() }`);
    expect([verdict, why]).to.deep.equal(['failed', 'SCN_ORDER: runLoad: startNode comes first']);
    const nothing = await run(`export default { title: 'nothing', async tell() {} }`);
    expect([nothing.verdict, nothing.why]).to.deep.equal(['failed', `SCN_ORDER: ${nothing.name}: it expects nothing`]);
  });

  it('are not read from a file that is none', async () => {
    for (const [name, why] of [
      ['nowhere', 'there are baseline, '],
      ['story.ts', 'TypeScript is compiled first'],
      [file('broken.mjs', 'export default {'), 'Unexpected'],
      [file('empty.mjs', 'export default { title: 1 }'), 'its default export has no title and tell(story)'],
    ] as const) {
      const said = await message(readScenario(name));
      expect(said).to.match(/^SCN_NO_FILE: /);
      expect(said).to.contain(name).and.to.contain(why);
    }
  });

  it('leave no text unescaped in the page', () => {
    const html = reportOf(
      [
        {
          ...{ name: 'a"b', title: '<b>', after: "'", verdict: 'failed', why: '</svg>', seed: 1, ms: 10, tape: '&' },
          steps: [{ name: '<i>', detail: '"', from: 0, to: 5, error: '<' }],
          streams: [{ end: 'cut', detail: '<u>', sent: 0, ended: 9, at: [3] }],
        },
      ],
      'today',
    );
    expect(html).not.to.match(/<b>|<i>|<u>|<\/svg><\/span>/);
  });
});
