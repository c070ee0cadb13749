/** The near side of `processes/engine-host.ts`. */
import type { LlamaEngineOptions } from '../gpu/index.js';
import type { EngineDriver } from './engine-driver.js';
import type { BenchModel } from './model.js';
import { startScript } from './processes.js';

export interface EngineHost extends EngineDriver {
  readonly vocabTokens: number;
}

interface Reply {
  readonly id?: number;
  readonly ready?: { readonly vocabTokens: number };
  readonly value?: unknown;
  readonly error?: string;
}

/** Resolves when the model is loaded. `cpus`: as taskset takes them. */
export async function startEngineHost(
  model: BenchModel,
  options: Partial<LlamaEngineOptions>,
  cpus: string | undefined,
): Promise<EngineHost> {
  const script = new URL('./processes/engine-host.js', import.meta.url);
  const started = startScript(script, [JSON.stringify({ model, options })], { ipc: true, cpus });
  const { child } = started;
  child.stdout?.resume();
  const waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  let calls = 0;
  const vocabTokens = await new Promise<number>((resolve, reject) => {
    child.once('exit', (code, signal) => {
      const error = new Error(`the engine process ended with ${signal ?? code}`);
      reject(error);
      for (const { reject: lose } of waiting.values()) lose(error);
    });
    child.on('message', (message) => {
      const { id, ready, value, error } = message as Reply;
      if (ready !== undefined) resolve(ready.vocabTokens);
      const call = waiting.get(id ?? 0);
      if (id === undefined || call === undefined) return;
      waiting.delete(id);
      if (error === undefined) call.resolve(value as never);
      else call.reject(new Error(error));
    });
  });
  const call = <T>(name: string, ...args: unknown[]) =>
    new Promise<T>((resolve, reject) => {
      const id = ++calls;
      waiting.set(id, { resolve: resolve as (value: never) => void, reject });
      child.send({ id, call: name, args });
    });
  return {
    vocabTokens,
    generate: (ask) => call('generate', ask),
    prefill: (ask) => call('prefill', ask),
    takeOver: (ask, prefilled) => call('takeOver', ask, prefilled),
    release: (key) => void call('release', key),
    endAll: () => call('endAll'),
    stop: () => started.stop(),
  };
}
