/**
 * An engine in a process of its own, driven over IPC. Arguments: the engine's options as JSON. A call is `{id, call, args}`, its answer
 * `{id, value}` or `{id, error}`; `ready` says that the model is loaded.
 */
import { drive, type EngineDriver } from '../engine-driver.js';
import { type BenchModel, openEngine } from '../model.js';

type Call = keyof Pick<EngineDriver, 'generate' | 'prefill' | 'takeOver' | 'release' | 'endAll'>;

const { model, options } = JSON.parse(process.argv[2] as string) as { model: BenchModel; options: object };
const engine = await openEngine(model, options);
const driver = drive(engine);
process.on('message', (message) => {
  const { id, call, args } = message as { id: number; call: Call; args: never[] };
  const run = driver[call] as (...args: never[]) => unknown;
  Promise.resolve()
    .then(() => run(...args))
    .then(
      (value) => process.send?.({ id, value: plain(value) }),
      (error) => process.send?.({ id, error: String(error) }),
    );
});
process.on('disconnect', () => void driver.stop().then(() => process.exit(0)));
process.on('SIGTERM', () => void driver.stop().then(() => process.exit(0)));
process.send?.({ ready: { vocabTokens: engine.card.vocabTokens } });

/** Functions do not cross processes. */
function plain(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return undefined;
  return Object.fromEntries(Object.entries(value).filter(([, field]) => typeof field !== 'function'));
}
