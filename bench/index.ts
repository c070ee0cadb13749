/** `npm run bench -- <name>`: measures, prints both sides in a table, and says whether the target is met. */
import { loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import type { Bench } from './bench.js';
import { calmLoad, machine, machineLine } from './machine.js';
import { isMet, passes, table } from './outcome.js';
import { profileInto } from './processes.js';

const benches: Readonly<Record<string, () => Promise<Bench>>> = {
  gateway: async () => (await import('./gateway.js')).gatewayBench,
  ttft: async () => (await import('./ttft.js')).ttftBench,
  engine: async () => (await import('./engine.js')).engineBench,
  handoff: async () => (await import('./handoff.js')).handoffBench,
  interference: async () => (await import('./interference.js')).interferenceBench,
  exactness: async () => (await import('./exactness.js')).exactnessBench,
  hashes: async () => (await import('./hashes.js')).hashesBench,
  kernel: async () => (await import('./kernel.js')).kernelBench,
  routing: async () => (await import('./routing.js')).routingBench,
  'kv-index': async () => (await import('./kv-index.js')).kvIndexBench,
  faults: async () => (await import('./faults.js')).faultsBench,
  startup: async () => (await import('./startup.js')).startupBench,
  tape: async () => (await import('./tape.js')).tapeBench,
};

const common = `  --json              one JSON object as the last line
  --profile DIR       CPU profiles of the processes that the benchmark starts, into this folder (node --cpu-prof)
  --help              this text`;

async function help(name: string | undefined): Promise<string> {
  if (name !== undefined && name in benches) {
    const bench = await (benches[name] as () => Promise<Bench>)();
    return `npm run bench -- ${name}: ${bench.summary}\n\n${[bench.help, common].filter(Boolean).join('\n')}\n`;
  }
  const lines = await Promise.all(
    Object.entries(benches).map(async ([each, load]) => `  ${each.padEnd(14)}${(await load()).summary}`),
  );
  return `npm run bench -- <name> [options]\n\n${lines.join('\n')}\n\n${common}\n`;
}

async function main(argv: readonly string[]): Promise<number> {
  const name = argv[0]?.startsWith('-') === true ? undefined : argv[0];
  const rest = name === undefined ? argv : argv.slice(1);
  if (name === undefined || rest.includes('--help')) {
    process.stdout.write(await help(name));
    return name === undefined && !argv.includes('--help') ? 2 : 0;
  }
  const load = benches[name];
  if (load === undefined) {
    process.stderr.write(`bench: there is no ${name}\n\n${await help(undefined)}`);
    return 2;
  }
  const bench = await load();
  const { values } = parseArgs({
    args: [...rest],
    options: { ...bench.options, json: { type: 'boolean' }, profile: { type: 'string' } },
  });
  if (typeof values.profile === 'string') profileInto(values.profile);
  const on = machine();
  process.stdout.write(`${machineLine(on)}\n`);
  if (on.load > calmLoad * on.cores) {
    process.stderr.write(`bench: the machine is busy (load ${on.load}): times will be too long, ratios rough\n`);
  }
  const progress = (text: string) => void process.stderr.write(`  ${text}\n`);
  const outcome = await bench.run(values, progress);
  const loadAfter = Math.round((loadavg()[0] as number) * 100) / 100;
  process.stdout.write(`\n${name}: ${bench.summary}\n${table(outcome.figures)}\n`);
  for (const note of outcome.notes ?? []) process.stdout.write(`  ${note}\n`);
  const pass = passes(outcome);
  if (values.json === true) {
    const flat = Object.fromEntries(outcome.figures.map(({ key, value }) => [key, value]));
    const figures = outcome.figures.map((row) => ({ ...row, met: isMet(row) ?? null }));
    const line = { bench: name, machine: { ...on, loadAfter }, pass, ...flat, figures, details: outcome.details ?? {} };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
  return pass ? 0 : 1;
}

main(process.argv.slice(2)).then(
  (code) => process.exit(code),
  (error: unknown) => {
    process.stderr.write(`bench: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
    process.exit(2);
  },
);
