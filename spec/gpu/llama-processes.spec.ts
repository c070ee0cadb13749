import { type ChildProcess, execFile, fork } from 'node:child_process';
import { once } from 'node:events';
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { packageRoot } from '../../gpu/addon.js';
import { greedy, openRig, prompt, type Rig, type Sender, seeded, tinyModelFile } from './llama-rig.js';
import type { Ready, Sent } from './llama-sender.js';

interface Remote extends Sender {
  readonly child: ChildProcess;
}

/** A prefill worker in a process of its own. */
async function startSender(threads: number): Promise<Remote> {
  const script = fileURLToPath(new URL('./llama-sender.js', import.meta.url));
  const child = fork(script, [tinyModelFile(), String(threads)], { serialization: 'advanced' });
  const [{ card, pool }] = (await once(child, 'message')) as [Ready];
  return {
    child,
    engine: { card, pool, release: (key) => void child.send({ release: key }) },
    async prefill(tokens, sampling, haveBlocks) {
      child.send({ prompt: tokens, sampling, haveBlocks });
      const [sent] = (await once(child, 'message')) as [Sent];
      return sent;
    },
  };
}

describe('Embedded engines in several processes', function () {
  this.timeout(120_000);
  let receiver: Rig;
  let sender: Remote;
  before(async () => {
    receiver = await openRig(tinyModelFile(), { slots: 3, sequenceTokens: 512, threads: 2 });
    sender = await startSender(1);
  });
  after(async () => {
    sender.child.kill('SIGKILL');
    await receiver.engine.stop();
  });

  for (const [name, sampling] of [
    ['greedy', greedy],
    ['seeded', seeded],
  ] as const) {
    it(`give the same ${name} tokens handed over between processes with other numbers of threads as alone`, async () => {
      for (const [i, length] of [1, 64, 100, 257, 321, 450].entries()) {
        const input = prompt(500 + i, length, receiver.engine.card.vocabTokens);
        const expected = await receiver.generate(input, sampling, { cacheSalt: 'alone' });
        const { tokens, failed } = await receiver.receive(sender, input, sampling, { cacheSalt: '' });
        expect(failed, `${length} tokens`).to.equal(undefined);
        expect(tokens, `${length} tokens`).to.deep.equal(expected.tokens);
      }
    });
  }

  it('refuse the KV of a process that was killed, and hold nothing afterwards', async () => {
    const victim = await startSender(1);
    const input = prompt(600, 200, receiver.engine.card.vocabTokens);
    const { failed } = await receiver.receive(
      {
        engine: { ...victim.engine, release: () => {} },
        async prefill(...asked) {
          const sent = await victim.prefill(...asked);
          victim.child.kill('SIGKILL');
          await once(victim.child, 'exit');
          return sent;
        },
      },
      input,
      greedy,
    );
    expect(failed?.code).to.equal('GPU_HANDOFF_GONE');
    expect(receiver.engine.load()).to.include({ busySlots: 0, usedKvBlocks: 0 });
  });
});

describe('Threads of the embedded engine', function () {
  this.timeout(120_000);
  it('do not change its tokens, alone or in a batch, beyond the 256 cells that the library reads in one piece', async () => {
    const open = (threads: number, slots: number) =>
      openRig(tinyModelFile(), { threads, slots, sequenceTokens: 512, cacheBytes: 0 });
    const rigs = [await open(1, 1), await open(2, 1), await open(2, 3)];
    const inputs = [250, 257, 449].map((length, i) => prompt(700 + i, length, 256));
    for (const sampling of [greedy, seeded]) {
      const seen: number[][][] = [];
      for (const rig of rigs)
        seen.push(await Promise.all(inputs.map(async (input) => (await rig.generate(input, sampling)).tokens)));
      expect(seen[1]).to.deep.equal(seen[0]);
      expect(seen[2]).to.deep.equal(seen[0]);
    }
    // More threads than cores crawl, so with three, which is another way through the engine, only a few tokens.
    const three = await open(3, 1);
    const few = await three.generate(inputs[1] as Uint32Array, greedy, { maxTokens: 4 });
    const same = await (rigs[0] as Rig).generate(inputs[1] as Uint32Array, greedy, { maxTokens: 4 });
    expect(few.tokens).to.deep.equal(same.tokens);
    await Promise.all([...rigs, three].map(({ engine }) => engine.stop()));
  });
});

/** Runs `loadNative(device)` in a process whose package folder holds the given libraries, and gives what it throws or prints. */
async function load(device: 'cpu' | 'cuda', fill?: (folder: string, library: string) => void): Promise<string> {
  const root = mkdtempSync(join(tmpdir(), 'dynact-library-'));
  try {
    writeFileSync(join(root, 'package.json'), '{"type":"module"}');
    mkdirSync(join(root, 'gpu'));
    for (const file of ['native.js', 'addon.js'])
      copyFileSync(new URL(`../../gpu/${file}`, import.meta.url), join(root, 'gpu', file));
    const platform = `linux-${process.arch}`;
    const name = device === 'cuda' ? `${platform}-cuda` : platform;
    const folder = join(root, 'node_modules/@node-llama-cpp', name, 'bins', name);
    const real = join(packageRoot(), 'node_modules/@node-llama-cpp', platform, 'bins', platform);
    if (fill !== undefined) {
      mkdirSync(folder, { recursive: true });
      for (const file of readdirSync(real)) symlinkSync(join(real, file), join(folder, file));
      fill(folder, readdirSync(real).find((file) => /^libllama\..*so$/.test(file)) as string);
    }
    const script = `import(${JSON.stringify(join(root, 'gpu/native.js'))}).then(({ loadNative }) =>
      console.log('loaded ' + loadNative(${JSON.stringify(device)}).version)).catch(({ message }) => console.log(message))`;
    const addon = process.env.DYNACT_ADDON ?? join(packageRoot(), 'gpu/native/build/Release/dynact.node');
    const { stdout } = await promisify(execFile)(process.execPath, ['-e', script], {
      env: { ...process.env, DYNACT_ADDON: addon },
    });
    return stdout.trim();
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

/** Puts other bytes where a link was. */
function replace(folder: string, file: string, bytes: Buffer): void {
  rmSync(join(folder, file));
  writeFileSync(join(folder, file), bytes);
}

describe('The library of the embedded engine', function () {
  this.timeout(60_000);
  it('is loaded from its package', async () => {
    expect(await load('cpu', () => {})).to.match(/^loaded \d+\.\d+/);
  });
  it('is missed by name, with the command that installs it', async () => {
    expect(await load('cpu')).to.match(/libllama is not installed \(.*\): run "npm run setup"/);
    expect(await load('cpu', (folder, library) => rmSync(join(folder, library)))).to.match(/^libllama is not in /);
  });
  it('is refused when it is another version than the addon was built for', async () => {
    const message = await load('cpu', (folder, library) => {
      const bytes = readFileSync(join(folder, library));
      const version = /v(\d+\.\d+\.\d+)\.so$/.exec(library)?.[1] as string;
      const at = bytes.indexOf(`\0${version}-`);
      expect(at, 'the version is in the file').to.be.greaterThan(0);
      bytes.write('9.9.9', at + 1);
      replace(folder, library, bytes);
    });
    expect(message).to.match(/^libllama is version 9\.9\.9\S*, the addon was built for \d+\.\d+/);
  });
  it('is refused by the name of the first symbol it lacks', async () => {
    const message = await load('cpu', (folder, library) => {
      const other = readdirSync(folder).find((file) => file.startsWith('libggml-base')) as string;
      replace(folder, library, readFileSync(join(folder, other)));
    });
    expect(message).to.equal('the library has no llama_version');
  });
  it('says "no GPU" for cuda, without its package as with a package that finds no device', async () => {
    expect(await load('cuda')).to.match(/no GPU: install @node-llama-cpp\/linux-.*-cuda/);
    expect(await load('cuda', () => {})).to.equal('no GPU: the CUDA back end found no device');
  });
});
