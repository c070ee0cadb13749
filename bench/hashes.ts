/**
 * Block hashes: how fast a core hashes a prompt's tokens, and, given a Python that has the real `ai-dynamo-runtime` wheel,
 * whether both give the same number for every block of random prompts.
 */
import { execFile } from 'node:child_process';
import { performance } from 'node:perf_hooks';
import { promisify } from 'node:util';
import { hashToHex, sequenceHashes } from '../gpu/index.js';
import type { Bench } from './bench.js';
import { type Figure, figure } from './outcome.js';

const promptTokens = 12_000;
const rounds = 9;

interface Case {
  readonly tokens: number[];
  readonly blockTokens: number;
  readonly salt: string;
}

export const hashesBench: Bench = {
  summary: 'Dynamo block hashes: speed on one core, and equality with the real ai-dynamo-runtime wheel',
  help: `  --python PATH       a Python that has the wheel: python3 -m venv V && V/bin/pip install ai-dynamo-runtime==1.6.1;
                      then --python V/bin/python. Without it only the speed is measured
  --cases N           random prompts to compare (default 2000)`,
  options: { python: { type: 'string' }, cases: { type: 'string', default: '2000' } },
  async run(options, progress) {
    const figures: Figure[] = [64, 512].map((blockTokens) =>
      figure(
        `gb_per_s_block_${blockTokens}`,
        `token bytes hashed, blocks of ${blockTokens}`,
        'GB/s',
        gigabytesPerSecond(blockTokens),
        { atLeast: 1 },
      ),
    );
    if (typeof options.python !== 'string') return { figures, notes: ['not compared: no --python with the wheel'] };
    const cases = randomCases(Number(options.cases));
    progress(`${cases.length} prompts through ai-dynamo-runtime`);
    const { version, hashes } = await dynamoHashes(options.python, cases);
    const equal = cases.filter((each, index) => localHashes(each).join() === hashes[index]?.join()).length;
    figures.push(
      figure('equal_share', `prompts equal to ai-dynamo-runtime ${version}`, 'of all', equal / cases.length, {
        atLeast: 1,
      }),
    );
    const blocks = hashes.reduce((sum, each) => sum + each.length, 0);
    return { figures, notes: [`${equal} of ${cases.length} prompts equal, ${blocks} blocks`] };
  },
};

function gigabytesPerSecond(blockTokens: number): number {
  const tokens = Uint32Array.from({ length: promptTokens }, (_, index) => (index * 7919) % 151_000);
  const rates = Array.from({ length: rounds }, () => {
    const started = performance.now();
    let done = 0;
    while (performance.now() - started < 100) {
      sequenceHashes(tokens, blockTokens, '');
      done++;
    }
    return (done * tokens.byteLength) / ((performance.now() - started) * 1e6);
  });
  return rates.sort((a, b) => a - b)[Math.floor(rounds / 2)] as number;
}

function randomCases(count: number): Case[] {
  const below = (limit: number) => Math.floor(Math.random() * limit);
  return Array.from({ length: count }, () => ({
    tokens: Array.from({ length: below(2_000) }, () => below(2 ** 32)),
    blockTokens: [1, 4, 16, 64, 128, 512][below(6)] as number,
    salt: below(2) === 0 ? '' : `tenant-${below(1_000)}-ü`,
  }));
}

/** The wheel gives local hashes; a block alone has its local hash as sequence hash. */
function localHashes({ tokens, blockTokens, salt }: Case): string[] {
  const hashes: string[] = [];
  for (let at = 0; at + blockTokens <= tokens.length; at += blockTokens) {
    const block = Uint32Array.from(tokens.slice(at, at + blockTokens));
    hashes.push(hashToHex(sequenceHashes(block, blockTokens, salt)[0] as bigint));
  }
  return hashes;
}

const script = `
import json, sys
from importlib.metadata import version
from dynamo.llm import compute_block_hash_for_seq as hashes
out = []
for case in json.load(sys.stdin):
    salt = case["salt"] or None
    out.append(["%016x" % h for h in hashes(case["tokens"], case["blockTokens"], cache_namespace=salt)])
json.dump({"version": version("ai-dynamo-runtime"), "hashes": out}, sys.stdout)
`;

async function dynamoHashes(python: string, cases: readonly Case[]): Promise<{ version: string; hashes: string[][] }> {
  const running = promisify(execFile)(python, ['-c', script], { maxBuffer: 2 ** 29, timeout: 120_000 });
  running.child.stdin?.end(JSON.stringify(cases));
  return JSON.parse((await running).stdout) as { version: string; hashes: string[][] };
}
