import {
  describe,
  isSupervisorError,
  logSink,
  resolveModel,
  resolveToolchain,
  startNode,
} from '../../supervisors/index.js';
import type { Options } from './main.js';
import { configurationOf } from './settings.js';

/** `dynact up`: one node, until it is told to stop. stdout carries one line, the one that says it is ready. */
export async function up(options: Options): Promise<void> {
  const { config } = await configurationOf(options);
  const terminal = process.stderr.isTTY === true;
  const sink = logSink(
    {
      level: config.log.level,
      format: config.log.format === 'auto' ? (terminal ? 'text' : 'json') : config.log.format,
      colour: terminal && !process.env.NO_COLOR,
    },
    (text) => process.stderr.write(text),
  );
  const model = await resolveModel(config, (text) => sink.log.info(text));
  const natsServer = config.nats.url === '' ? resolveToolchain().natsServer : '';

  const callOff = new AbortController();
  let kill: () => void = () => process.exit(130);
  let signals = 0;
  const onSignal = (signal: NodeJS.Signals) => {
    signals += 1;
    sink.log.info(signals === 1 ? 'finishing what is in flight' : 'ending now', { signal });
    if (signals === 1) callOff.abort();
    else kill();
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal);
  // Whoever read the log or the ready line may be gone; that is no reason to drop requests.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});

  const starting = startNode({
    callOff: callOff.signal,
    config,
    model,
    natsServer,
    script: process.argv[1] as string,
    sink,
    progress: (text) => sink.log.info(text),
  });
  const node = await starting.catch((error) => {
    if (!isSupervisorError(error, 'SUP_CALLED_OFF')) throw error;
  });
  if (node === undefined) return process.exit();
  kill = () => node.kill();
  if (signals === 0) {
    const { prefill, decode } = config.topology;
    const where = node.url === '' ? config.node.name : node.url;
    process.stdout.write(`dynact ready ${where} (model ${model.id}, prefill ${prefill}, decode ${decode})\n`);
  }
  const reason = await node.exit;
  if (reason.kind === 'error') {
    process.stderr.write(`dynact: ${describe(reason.error)}\n`);
    process.exitCode = isSupervisorError(reason.error, 'SUP_NODE_GAVE_UP') ? 3 : 1;
  }
  process.exit();
}
