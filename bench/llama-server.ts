/** llama.cpp's own server as the peer of the engine benchmark: same weights, same kernels, same load generator. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { cacheFolder, packageRoot } from '../supervisors/index.js';
import { promptOf } from './engine-driver.js';
import { generateLoad } from './loadgen.js';
import { freePort, start } from './processes.js';

export interface LlamaServer {
  /** Output tokens per second of `requests` requests, `clients` at a time. */
  rate(clients: number, requests: number, promptTokens: number, answerTokens: number): Promise<number>;
  stop(): Promise<void>;
}

const readyMs = 120_000;
const contextTokens = 256;

/**
 * The program to measure beside. `asked` is its path, or `build`: set-up then compiles it into the cache folder, unless it is there
 * (minutes, once). Without it the one in the cache, if there is one.
 */
export async function findLlamaServer(asked: string | undefined): Promise<string | undefined> {
  if (asked === 'build') {
    const setUp = spawn(process.execPath, [join(packageRoot(), 'bin/setup.mjs'), '--only', 'llama-server'], {
      stdio: ['ignore', 2, 2],
    });
    const [code] = (await once(setUp, 'exit')) as [number | null];
    if (code !== 0) throw new Error('llama-server could not be built');
  } else if (asked !== undefined) {
    return asked;
  }
  const manifest = join(cacheFolder(), 'manifest.json');
  if (!existsSync(manifest)) return undefined;
  const { llamaServer } = JSON.parse(readFileSync(manifest, 'utf8')) as { llamaServer?: { readonly path: string } };
  return llamaServer !== undefined && existsSync(llamaServer.path) ? llamaServer.path : undefined;
}

/** With `slots` sequences of 256 tokens, flash attention, and no cache of prompts in its memory either. */
export async function startLlamaServer(
  program: string,
  model: string,
  slots: number,
  threads: number,
): Promise<LlamaServer> {
  const port = await freePort();
  const flags: Readonly<Record<string, string | number>> = {
    '-m': model,
    '-np': slots,
    '-c': slots * contextTokens,
    '-fa': 'on',
    '-t': threads,
    '-tb': threads,
    '--cache-ram': 0,
    '--host': '127.0.0.1',
    '--port': port,
  };
  const server = start([program, ...Object.entries(flags).flat().map(String), '--log-disable'], {
    env: { LD_LIBRARY_PATH: dirname(program) },
  });
  server.child.stdout?.resume();
  try {
    await healthy(port, () => server.child.exitCode !== null || server.child.signalCode !== null);
  } catch (error) {
    await server.stop();
    throw error;
  }
  return {
    async rate(clients, requests, promptTokens, answerTokens) {
      const prompt = `[@@N@@,${[...promptOf(1, promptTokens - 1, 40_000)].join(',')}]`;
      const body = `{"prompt":${prompt},"n_predict":${answerTokens},"temperature":0,"ignore_eos":true,"cache_prompt":false,"stream":true}`;
      const { seconds } = await generateLoad({ port, clients, requests, body, path: '/completion' });
      return (requests * answerTokens) / seconds;
    },
    stop: () => server.stop(),
  };
}

async function healthy(port: number, ended: () => boolean): Promise<void> {
  const deadline = performance.now() + readyMs;
  while (performance.now() < deadline) {
    if (ended()) throw new Error('llama-server ended while it was starting');
    const answer = await fetch(`http://127.0.0.1:${port}/health`, { signal: AbortSignal.timeout(1_000) }).catch(
      () => undefined,
    );
    if (answer?.ok === true) return;
    await sleep(100);
  }
  throw new Error(`llama-server is not ready after ${readyMs} ms`);
}
