/** Command line grammar: what exists, what it takes, and which file does it. */
import { Command, Option } from 'commander';
import {
  describe,
  isSupervisorError,
  packageVersion,
  type Setting,
  type SettingQuestion,
  settings,
} from '../../supervisors/index.js';
import type { ReplayCommand } from './replay.js';
import type { ScenarioOptions } from './scenario.js';
import type { TapeOptions } from './tape.js';
import type { TraceOptions } from './trace.js';
import { UsageError } from './usage.js';

/** Exit codes: 1 = it failed, 2 = the command line or the configuration is wrong. */
const exitFailed = 1;
const exitUsage = 2;

export async function main(argv: readonly string[]): Promise<void> {
  const program = new Command('dynact')
    .description('Serves large language models on separate, supervised prefill and decode workers.')
    .version(packageVersion(), '-V, --version')
    .showHelpAfterError('(run with --help for all options)')
    .configureHelp({ sortSubcommands: false })
    .exitOverride()
    .addHelpText('after', examples);

  settingsOf(program.command('up'))
    .description('start a node: NATS, workers and gateways; runs until it is stopped')
    .addHelpText('after', upHelp)
    .action(async (options: Options) => (await import('./up.js')).up(options));

  program
    .command('status')
    .description('show the processes of the node that runs in the state folder')
    .option('--json', 'print one JSON object')
    .option('--watch', 'print again every second')
    .addOption(stateDirOption())
    .action(async (options: StatusOptions) => (await import('./status.js')).status(options));

  program
    .command('stop')
    .description('let the node finish what is in flight and end')
    .option('--now', 'do not wait for requests in flight')
    .addOption(stateDirOption())
    .action(async (options: StopOptions) => (await import('./stop.js')).stop(options));

  program
    .command('restart')
    .description('replace processes one after the other, each drained while the others serve')
    .argument('[instances...]', 'e.g. decode-0')
    .option('--rolling', 'all workers')
    .option('--all', 'with --rolling: then all gateways')
    .option('--in-place', 'no stand-in for the only process of its role: requests wait for it')
    .option('--json', 'print one JSON object per step')
    .addOption(stateDirOption())
    .action(async (instances: string[], options: RestartOptions) =>
      (await import('./restart.js')).restart(instances, options),
    );

  program
    .command('route')
    .description('show why a request went to the workers it went to, or where one would go')
    .option('--explain <request>', 'id of a request, as its answer has it')
    .option('--prompt <text>', 'what a chat with this message would meet; nothing is computed')
    .option('--json', 'print one JSON list')
    .addOption(stateDirOption())
    .action(async (options: RouteOptions) => (await import('./route.js')).route(options));

  program
    .command('trace')
    .description('show what happened to one request, across processes: who told whom what, and where its time went')
    .argument('<request>', 'its id as its answer has it (chatcmpl-…), or its x-request-id')
    .option('--json', 'print one JSON list')
    .option('--perfetto <file>', 'write it for https://ui.perfetto.dev (Chrome trace events)')
    .addOption(fileOption())
    .addOption(importedOption())
    .addOption(stateDirOption())
    .addHelpText('after', traceHelp)
    .action(async (request: string, options: TraceOptions) => (await import('./trace.js')).trace(request, options));

  program
    .command('replay')
    .description('run actors again on what the tape says they were told, and show where they first do something else')
    .argument('<what>', 'an actor (router, gateway-0-x.frontend), a request, or a schedule of the simulator (*.json)')
    .option('--from <entry>', 'print entries from this one on')
    .option('--to <entry>', 'print entries up to this one')
    .option('--until <entry>', 'end after this one')
    .option('--step', 'print every entry; in a terminal wait for Enter after each')
    .option('--break <type>', 'stop before messages of this type')
    .option('--inspect', 'wait for a debugger; with --break it is stopped there')
    .option('--json', 'print one JSON list')
    .addOption(fileOption())
    .addOption(importedOption())
    .addOption(stateDirOption())
    .action(async (what: string, options: ReplayCommand) => (await import('./replay.js')).replay(what, options));

  const scenarios = program
    .command('scenario')
    .description('provoke faults on real processes, and see what comes of the requests');
  scenarios
    .command('list')
    .description('what there is')
    .option('--json', 'print one JSON list')
    .action(async (options: { json?: true }) => (await import('./scenario.js')).listScenarios(options));
  scenarios
    .command('run')
    .description('run scenarios on nodes of their own (mock engine), one after the other')
    .argument('<scenario...>', 'a name, a JavaScript file, or all')
    .option('--seed <n>', 'of prompts and sampling', '1')
    .option('--report <file>', 'write an HTML page with the timelines')
    .option('--node <where>', 'on a running node: its URL, or its state folder; what cannot be done there is refused')
    .option('--tapes <folder>', 'where the tapes go; without it a new temporary folder')
    .option('--log <file>', 'append the logs of the nodes')
    .option('--json', 'print one JSON list of verdicts, steps and streams')
    .action(async (names: string[], options: ScenarioOptions) =>
      (await import('./scenario.js')).runScenarios(names, options),
    );

  const tape = program
    .command('tape')
    .description('list, follow, search, save and load the records that the streams of a node hold')
    .addHelpText('after', tapeHelp);
  const tapeCommand = (name: string) => filtersOf(tape.command(name)).addOption(stateDirOption());
  tapeCommand('ls')
    .description('print records, oldest first')
    .option('--limit <count>', 'the last so many; 0 = all [100]')
    .addOption(fileOption())
    .addOption(importedOption())
    .action(async (options: TapeOptions) => (await import('./tape.js')).ls(options));
  tapeCommand('tail')
    .description('print records as they come, until interrupted')
    .action(async (options: TapeOptions) => (await import('./tape.js')).tail(options));
  tapeCommand('grep')
    .description('print the records whose line (with --json: whose JSON) matches')
    .argument('<pattern>', 'a regular expression; case does not count')
    .addOption(fileOption())
    .addOption(importedOption())
    .action(async (pattern: string, options: TapeOptions) => (await import('./tape.js')).grep(pattern, options));
  tapeCommand('export')
    .description('write records to a new file, for --file or for another node')
    .argument('<file>')
    .action(async (path: string, options: TapeOptions) => (await import('./tape.js')).exportTo(path, options));
  tape
    .command('import')
    .description('store the records of a file on the TAPE of the node, where they can be read with --imported')
    .argument('<file>')
    .option('--as <name>', 'name to read them by; what it named before is replaced [file]')
    .addOption(stateDirOption())
    .action(async (path: string, options: TapeOptions) => (await import('./tape.js')).importFrom(path, options));
  tape
    .command('streams')
    .description('print what each stream holds, and for how long')
    .option('--json', 'print one JSON object')
    .addOption(fileOption())
    .addOption(stateDirOption())
    .action(async (options: TapeOptions) => (await import('./tape.js')).streams(options));

  program
    .command('chat')
    .description('talk to the model in the terminal; reads prompts from a pipe, too')
    .option('--url <url>', 'server to talk to; default: the node in the state folder')
    .option('--system <text>', 'instructions that precede the conversation')
    .option('--temperature <number>', '0 = always the likeliest token', Number)
    .option('--max-tokens <count>', 'longest answer', Number)
    .option('--seed <count>', 'same seed, same answer', Number)
    .option('--chat-model <id>', 'model to talk to; default: the first that the server lists')
    .addOption(stateDirOption())
    .addHelpText('after', chatHelp)
    .action(async (options: ChatOptions) => (await import('./chat.js')).chat(options));

  const config = settingsOf(program.command('config'))
    .description('print every setting, and where its value comes from')
    .option('--json', 'print one JSON object')
    .action(async (options: Options) => (await import('./config.js')).config(options));
  // Its own options are the parent's, too, which takes them wherever they stand.
  const changes = (name: string) => config.command(name).addOption(stateDirOption());
  const change = async (question: SettingQuestion, command: Command) =>
    (await import('./live.js')).change(question, command.optsWithGlobals());
  changes('set')
    .description('change a setting of everything that runs on the broker, until it is unset')
    .argument('<setting>', 'e.g. routing.activePrefillTokensThreshold')
    .argument('<value>')
    .action((key: string, value: string, _: unknown, command: Command) => change({ type: 'set', key, value }, command));
  changes('unset')
    .description('let what is configured hold again')
    .argument('<setting>')
    .action((key: string, _: unknown, command: Command) => change({ type: 'set', key }, command));
  changes('get')
    .description('print what was set')
    .action((_: unknown, command: Command) => change({ type: 'settings' }, command));

  settingsOf(program.command('doctor'))
    .description('check what dynact needs on this machine, and say what to do')
    .option('--json', 'print one JSON object')
    .action(async (options: Options) => (await import('./doctor.js')).doctor(options));

  program.hook('preAction', (_, command) => refuseEmpty(command));

  try {
    await program.parseAsync(argv as string[]);
  } catch (error) {
    process.exitCode = report(error);
  }
}

/** Nobody means an empty value: it is a variable that was not set. Only settings that are empty by default may be. */
function refuseEmpty(command: Command): void {
  for (const option of command.options) {
    const mayBe = settings.some(({ schema }) => schema.flag === option.long && schema.default === '');
    if (command.getOptionValue(option.attributeName()) === '' && !mayBe)
      throw new UsageError(`${option.long} must not be empty`);
  }
  if (command.args.includes('')) throw new UsageError('an argument is empty');
}

/** Options of a command, as commander names them. */
export type Options = Readonly<Record<string, unknown>>;
export interface StatusOptions {
  readonly json?: true;
  readonly watch?: true;
  readonly stateDir?: string;
}
export interface RestartOptions {
  readonly rolling?: true;
  readonly all?: true;
  readonly inPlace?: true;
  readonly json?: true;
  readonly stateDir?: string;
}
export interface RouteOptions {
  readonly explain?: string;
  readonly prompt?: string;
  readonly json?: true;
  readonly stateDir?: string;
}
export interface ChangeOptions {
  readonly stateDir?: string;
}
export interface StopOptions {
  readonly now?: true;
  readonly stateDir?: string;
}
export interface ChatOptions {
  readonly url?: string;
  readonly system?: string;
  readonly temperature?: number;
  readonly maxTokens?: number;
  readonly seed?: number;
  readonly chatModel?: string;
  readonly stateDir?: string;
}

const fileOption = () => new Option('--file <file>', 'read a file of `dynact tape export` instead of a node');
const importedOption = () => new Option('--imported <name>', 'read what was imported into the node');

function filtersOf(command: Command): Command {
  return command
    .option('--component <name>', 'from or to gateway, prefill, decode or node')
    .option('--actor <part>', 'from or to addresses with this in them, e.g. decode-0 or frontend')
    .option('--req <request>', 'of one request, as its answer has it; tokens are told by `dynact trace`')
    .option('--type <type>', 'e.g. Reserve, Failed, step, routes, journal, dead')
    .option('--since <when>', 'e.g. 90s, 5m, 2h, or 2026-01-31T12:00:00Z')
    .option('--stream <names>', 'of MAIL, TAPE, KV, JOURNAL, DEAD; with commas')
    .option('--json', 'print one JSON object per record');
}

function stateDirOption(): Option {
  return new Option('--state-dir <folder>', 'folder of the node; default ./.dynact, or as configured');
}

/** Every setting that has a flag. Values stay text: the configuration checks them, with better messages. */
function settingsOf(command: Command): Command {
  command.option('--config <file>', 'configuration file; default: dynact.config.json or .yaml in this folder');
  for (const setting of settings) {
    const { flag, description } = setting.schema;
    if (flag === undefined) continue;
    command.addOption(
      new Option(`${flag} <${placeholder(setting)}>`, `${description} [${String(setting.schema.default)}]`),
    );
  }
  return command;
}

function placeholder({ schema, key }: Setting): string {
  const values = (schema as { enum?: readonly unknown[] }).enum;
  if (values) return values.join('|');
  const type = (schema as { type?: string }).type;
  if (key.endsWith('Bytes')) return 'bytes';
  if (key.endsWith('Ms')) return 'ms';
  return type === 'integer' || type === 'number' ? 'n' : 'text';
}

function report(error: unknown): number {
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string' && code.startsWith('commander.')) {
    // Commander has written its message, or the help that was asked for.
    return (error as { exitCode: number }).exitCode === 0 ? 0 : exitUsage;
  }
  process.stderr.write(`dynact: ${describe(error)}\n`);
  if (error instanceof UsageError) return exitUsage;
  if (!isExpected(code)) process.stderr.write(`${error instanceof Error ? error.stack : ''}\n`);
  return isSupervisorError(error) && error.code.startsWith('SUP_CONFIG') ? exitUsage : exitFailed;
}

/** Errors of our own tables say all that a person needs; for anything else, a bug, the stack says where. */
const isExpected = (code: unknown): boolean => typeof code === 'string' && /^(ACT|GPU|GWY|NET|SCN|SUP)_/.test(code);

const examples = `
Examples:
  dynact up                                   serve the default model on http://127.0.0.1:8000
  dynact up --prefill 2 --decode 2 --port 9000
  dynact up --engine mock --speedup 0         no model, tokens as fast as they go
  dynact chat                                 talk to it
  echo 'Why is the sky blue?' | dynact chat   one answer on stdout
  dynact status --watch                       what runs, and what it does
  dynact restart --rolling                    new worker processes, one after the other, nothing lost
  dynact route --explain chatcmpl-01k…        why a request went where it went
  dynact trace chatcmpl-01k…                  what happened to a request, in every process
  dynact tape tail --type Failed              records as they are written
  dynact stop                                 finish what is in flight, then end
  dynact doctor                               what is missing on this machine

From a clone: npm start -- --port 9000; npx dynact status`;

const upHelp = `
Settings without a flag go in dynact.config.json or .yaml (groups as printed by \`dynact config\`), or in the
environment: http.port is DYNACT_HTTP_PORT. Flags win over the environment, the environment over the file.

When everything is up, one line is written to stdout: dynact ready http://127.0.0.1:8000 (model …, prefill 1, decode 1)
Logs go to stderr. SIGINT or SIGTERM finishes what is in flight; a second one ends at once.`;

const chatHelp = `
In the terminal: /reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops the answer that is being written.`;

const traceHelp = `
Times are milliseconds since the request was accepted, by the broker's clock. For a request that still runs, phases go on; for one that
migrated, each attempt has its own. What the streams no longer hold is said at the end. Mailboxes and tokens are kept for 15 minutes and
as long as the broker lives, the journal for a day; with tape.level full all of them are on disk, tokens for an hour.

Examples:
  dynact trace chatcmpl-01kbc…
  dynact trace my-label-17 --perfetto slow.json
  dynact tape export today.tape && dynact trace chatcmpl-01kbc… --file today.tape`;

const tapeHelp = `
Streams: MAIL (commands in mailboxes), TAPE (tokens, progress, loads, decisions), KV (cached blocks), JOURNAL (accepted and ended
requests), DEAD (what could not be handled). Prompts and tokens are shown and exported only with tape.level full.

Examples:
  dynact tape streams                              what there is, and since when
  dynact tape ls --req chatcmpl-01kbc… --limit 0   every message of one request
  dynact tape ls --type Failed --since 5m
  dynact tape tail --component decode --json
  dynact tape grep 'GPU_HANDOFF|WORKER_DOWN'
  dynact tape export today.tape --since 10m        for another machine: dynact trace … --file today.tape`;
