/** What the gateway costs per streamed event: paced beside a plain server, unpaced beside Dynamo's frontend. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Bench } from './bench.js';
import { type DynactNode, startDynact } from './dynact-node.js';
import { generateLoad, type Load, type LoadResult } from './loadgen.js';
import { type Figure, figure, type Outcome, ratio } from './outcome.js';
import { says, startScript, twoCores } from './processes.js';
import { interleaved, median } from './statistics.js';

const stepMs = 5;
const pacedTokens = 64;
const unpacedTokens = 256;
const unpacedClients = 256;

const chat = (maxTokens: number) =>
  JSON.stringify({
    model: 'mock',
    messages: [{ role: 'user', content: 'Question @@N@@: what does one event cost?' }],
    max_tokens: maxTokens,
    ignore_eos: true,
    stream: true,
  });

export const gatewayBench: Bench = {
  summary: 'CPU per streamed event and events per second',
  help: `  --paced             only: 5 ms between tokens, beside a plain node:http server
  --unpaced           only: as fast as it goes
  --rounds N          repetitions of each side (3)
  --seconds N         about how long one repetition takes (8)
  --dynamo URL        a running Dynamo to measure beside, e.g. http://127.0.0.1:8300 (docs/benchmarks.md says how to start one)
  --dynamo-pids A,B   its processes, the frontend first
  --dynamo-dir DIR    instead of --dynamo-pids: folder whose file pids has a line "PID role" each`,
  options: {
    paced: { type: 'boolean' },
    unpaced: { type: 'boolean' },
    rounds: { type: 'string' },
    seconds: { type: 'string' },
    dynamo: { type: 'string' },
    'dynamo-pids': { type: 'string' },
    'dynamo-dir': { type: 'string' },
  },
  async run(options, progress): Promise<Outcome> {
    const rounds = Number(options.rounds ?? 3);
    const seconds = Number(options.seconds ?? 8);
    const both = options.paced === options.unpaced;
    const outcomes: Outcome[] = [];
    if (both || options.paced === true) outcomes.push(await paced(rounds, seconds, progress));
    if (both || options.unpaced === true) outcomes.push(await unpaced(rounds, seconds, dynamoOf(options), progress));
    return {
      figures: outcomes.flatMap(({ figures }) => figures),
      notes: outcomes.flatMap(({ notes }) => notes ?? []),
      details: Object.assign({}, ...outcomes.map(({ details }) => details)),
    };
  },
};

/** A mock node on which no request ever waits for a slot. */
const mockNode = (speed: number, env: Record<string, string> = {}): Promise<DynactNode> =>
  startDynact({
    flags: ['--engine', 'mock', '--model', 'mock', '--speedup', String(speed), '--slots', '256'],
    env: { DYNACT_ENGINE_PREFILL_SLOTS: '256', ...env },
    cpus: twoCores(),
  });

const microsPerEvent = (result: LoadResult, pid: number) => (result.cpu(pid) * 1e6) / result.events;

async function paced(rounds: number, seconds: number, progress: (text: string) => void): Promise<Outcome> {
  const node = await mockNode(1, { DYNACT_MOCK_STEP_MS: String(stepMs) });
  const plain = startScript(
    new URL('./processes/plain-server.js', import.meta.url),
    [String(pacedTokens), String(stepMs)],
    { cpus: twoCores() },
  );
  try {
    const plainPort = Number((await says(plain, /^port (\d+)/))[1]);
    const gateway = node.pid('gateway');
    const figures: Figure[] = [];
    const details: Record<string, unknown> = {};
    for (const clients of [64, 256]) {
      const answerSeconds = (pacedTokens * stepMs) / 1000;
      const load = (scale: number) => ({
        clients,
        requests: clients * Math.max(1, Math.round((seconds * scale) / answerSeconds)),
        body: chat(pacedTokens),
      });
      const dynact = (scale = 1) => generateLoad({ ...load(scale), port: node.port, pids: node.pids });
      const peer = (scale = 1) => generateLoad({ ...load(scale), port: plainPort, pids: [plain.pid] });
      // Code that has not run yet is not compiled yet.
      await dynact(0.25);
      await peer(0.25);
      const results = await interleaved(rounds, {
        dynact: (round) => {
          progress(`paced, ${clients} clients, round ${round + 1} of ${rounds}`);
          return dynact();
        },
        peer: () => peer(),
      });
      const ours = results.dynact ?? [];
      const theirs = results.peer ?? [];
      const cost = ours.map((result) => microsPerEvent(result, gateway));
      const peerCost = theirs.map((result) => microsPerEvent(result, plain.pid));
      figures.push(
        ratio(
          `paced_ratio_${clients}`,
          `paced, ${clients} clients: gateway CPU`,
          'µs/event',
          median(cost),
          median(peerCost),
          {
            atMost: 1.6,
          },
        ),
        ratio(
          `paced_events_${clients}`,
          `paced, ${clients} clients: pace`,
          'events/s',
          median(ours.map(({ eventsPerSecond }) => eventsPerSecond)),
          median(theirs.map(({ eventsPerSecond }) => eventsPerSecond)),
        ),
      );
      details[`paced_${clients}`] = { dynact: cost, peer: peerCost };
    }
    return { figures, details, notes: ['paced: the peer is a plain node:http server that sends the same events'] };
  } finally {
    await Promise.all([node.stop(), plain.stop()]);
  }
}

interface Dynamo {
  readonly port: number;
  /** The frontend first. */
  readonly pids: readonly number[];
}

export function dynamoOf(options: Readonly<Record<string, unknown>>): Dynamo | undefined {
  if (typeof options.dynamo !== 'string') return undefined;
  const { port } = new URL(options.dynamo);
  if (port === '') throw new Error(`--dynamo needs a port: ${options.dynamo}`);
  const pids =
    typeof options['dynamo-dir'] === 'string'
      ? frontendFirst(readFileSync(join(options['dynamo-dir'], 'pids'), 'utf8'))
      : String(options['dynamo-pids'] ?? '')
          .split(',')
          .filter(Boolean)
          .map(Number);
  if (pids.length === 0 || pids.some(Number.isNaN)) throw new Error('--dynamo-pids: process ids, the frontend first');
  return { port: Number(port), pids };
}

function frontendFirst(lines: string): number[] {
  const entries = lines
    .trim()
    .split('\n')
    .map((line) => line.split(' '));
  const isFrontend = ([, role]: string[]) => role === 'frontend';
  return [...entries.filter(isFrontend), ...entries.filter((entry) => !isFrontend(entry))].map(([pid]) => Number(pid));
}

async function unpaced(
  rounds: number,
  seconds: number,
  dynamo: Dynamo | undefined,
  progress: (text: string) => void,
): Promise<Outcome> {
  const node = await mockNode(0);
  try {
    const load = (requests: number): Omit<Load, 'port'> => ({
      clients: unpacedClients,
      requests,
      body: chat(unpacedTokens),
    });
    const dynact = (requests: number) => generateLoad({ ...load(requests), port: node.port, pids: node.pids });
    const peer = (requests: number) => {
      if (dynamo === undefined) throw new Error('no Dynamo');
      return generateLoad({ ...load(requests), port: dynamo.port, pids: dynamo.pids });
    };
    // As many requests as fill the time, told from a first run that also warms up.
    const fill = (warm: LoadResult) =>
      Math.max(unpacedClients, Math.round((seconds * warm.requests) / warm.seconds / unpacedClients) * unpacedClients);
    const warm = await dynact(4 * unpacedClients);
    const requests = fill(await dynact(4 * unpacedClients));
    const peerRequests = dynamo === undefined ? 0 : fill(await peer(2 * unpacedClients));
    const before = await node.commands();
    const results = await interleaved(rounds, {
      dynact: (round) => {
        progress(`unpaced, round ${round + 1} of ${rounds}`);
        return dynact(requests);
      },
      ...(dynamo === undefined ? {} : { peer: () => peer(peerRequests) }),
    });
    const commands = ((await node.commands()) - before) / (rounds * requests);
    const ours = results.dynact ?? [];
    const theirs = results.peer ?? [];
    const rate = median(ours.map(({ eventsPerSecond }) => eventsPerSecond));
    const gateway = median(ours.map((result) => microsPerEvent(result, node.pid('gateway'))));
    const all = (result: LoadResult, pids: readonly number[]) =>
      pids.reduce((sum, pid) => sum + microsPerEvent(result, pid), 0);
    const whole = median(ours.map((result) => all(result, node.pids)));
    const details = {
      unpaced: {
        warm: warm.eventsPerSecond,
        dynact: ours.map(({ eventsPerSecond }) => eventsPerSecond),
        dynamo: theirs.map(({ eventsPerSecond }) => eventsPerSecond),
        roles: Object.fromEntries(
          (['gateway', 'prefill', 'decode', 'nats'] as const).map((role) => [
            role,
            median(ours.map((result) => microsPerEvent(result, node.pid(role)))),
          ]),
        ),
      },
    };
    const perRequest = figure(
      'commands_per_request',
      'JetStream commands per undisturbed request',
      'commands',
      commands,
      {
        atMost: 3,
      },
    );
    if (dynamo === undefined) {
      return {
        figures: [
          figure('unpaced_events', 'unpaced, 256 clients: rate', 'events/s', rate),
          figure('unpaced_cpu', 'unpaced, 256 clients: gateway CPU', 'µs/event', gateway),
          figure('unpaced_cpu_all', 'unpaced, 256 clients: CPU of all processes', 'µs/event', whole),
          perRequest,
        ],
        notes: ['unpaced: no peer; --dynamo names a running Dynamo to measure beside'],
        details,
      };
    }
    const [frontend = 0] = dynamo.pids;
    return {
      figures: [
        ratio(
          'unpaced_events_ratio',
          'unpaced, 256 clients: rate',
          'events/s',
          rate,
          median(theirs.map(({ eventsPerSecond }) => eventsPerSecond)),
          { atLeast: 7 },
        ),
        ratio(
          'unpaced_cpu_ratio',
          'unpaced, 256 clients: gateway CPU',
          'µs/event',
          gateway,
          median(theirs.map((result) => microsPerEvent(result, frontend))),
          { atMost: 0.333 },
        ),
        ratio(
          'unpaced_cpu_all_ratio',
          'unpaced, 256 clients: CPU of all processes',
          'µs/event',
          whole,
          median(theirs.map((result) => all(result, dynamo.pids))),
        ),
        perRequest,
      ],
      notes: ['unpaced: the peer is Dynamo, its frontend and its mock workers without delay'],
      details,
    };
  } finally {
    await node.stop();
  }
}
