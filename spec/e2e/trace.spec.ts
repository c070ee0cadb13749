import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { connect } from 'nats';
import { type RecordParts, type ResolvedConfig, recordParts } from '../../supervisors/index.js';
import { endNodes, startNode, type TestNode, until } from './node-kit.js';
import { plainCbor } from './plain-cbor.js';

type Trace = ReturnType<RecordParts['traceOf']>;
type Perfetto = ReturnType<RecordParts['perfettoOf']>;
type Map = Readonly<Record<string, unknown>>;

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const run = promisify(execFile);

describe('dynact trace and dynact tape', function () {
  this.timeout(60_000);
  let node: TestNode;
  let parts: RecordParts;
  before(async () => {
    parts = await recordParts();
    node = await startNode(['--prefill', '2', '--decode', '2', '--gateway', '2', '--speedup', '10']);
  });
  after(endNodes);

  const dynact = (...args: string[]) =>
    run(process.execPath, [cli, ...args, '--state-dir', node.stateDir], { maxBuffer: 64 * 1024 * 1024 });
  const refused = (...args: string[]) =>
    dynact(...args).then(
      ({ stdout }) => ({ code: 0, stdout, stderr: '' }),
      ({ code, stdout, stderr }: { code: number; stdout: string; stderr: string }) => ({ code, stdout, stderr }),
    );
  const config = () => ({ nats: { url: '' }, node: { stateDir: node.stateDir } }) as ResolvedConfig;
  /** As the command does it, in this process. */
  async function traced(
    name: string,
    from: () => ReturnType<RecordParts['openFile']> = () => parts.openNode(config()),
  ): Promise<Trace> {
    const source = await from();
    try {
      return parts.traceOf((await parts.gather(source, name)).at(-1) as Parameters<RecordParts['traceOf']>[0]);
    } finally {
      await source.close();
    }
  }
  const lines = (stdout: string) =>
    stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Map);

  const content = 'A prompt of some hundred tokens, so that there are blocks. '.repeat(40);
  const post = (label: string, body: Map, signal?: AbortSignal) =>
    fetch(`${node.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-request-id': label },
      body: JSON.stringify({ model: 'mock', messages: [{ role: 'user', content }], ...body }),
      ...(signal && { signal }),
    });
  /** A stream that goes on until it is called off, once its first text is there. */
  async function stream(label: string, body: Map = {}) {
    const abort = new AbortController();
    const response = await post(label, { stream: true, max_tokens: 30_000, ...body }, abort.signal);
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    await reader.read();
    const reading = (async () => {
      for (;;) if ((await reader.read()).done) return;
    })().catch(() => {});
    return {
      stop: async () => {
        abort.abort();
        await reading;
      },
    };
  }
  const phases = ({ phases: all }: Trace, attempt: number) =>
    all.filter((phase) => phase.attempt === attempt).map(({ name }) => name);
  const told = ({ happenings }: Trace, type: string) => happenings.filter((each) => each.type === type);

  let id: string;
  it('tells of a request that is over, by its own id or its client’s, where it was and where its time went', async () => {
    ({ id } = (await (await post('tale-1', { max_tokens: 30 })).json()) as { id: string });
    const trace = await until('its end to be in the journal', async () => {
      const now = await traced('tale-1').catch(() => undefined);
      return now?.outcome === 'complete' && told(now, 'placed').length > 0 && now;
    });
    expect(id).to.equal(`chatcmpl-${trace.request}`);
    expect(trace).to.deep.include({ label: 'tale-1', attempts: 1, completionTokens: 30, missing: [] });
    expect(phases(trace, 1)).to.deep.equal(['queue', 'prefill', 'transfer', 'decode']);
    for (const [index, { from, to }] of trace.phases.entries()) {
      expect(to).to.be.at.least(from);
      expect(from).to.be.at.least(trace.phases[index - 1]?.from ?? trace.acceptedAt);
      expect(to).to.be.at.most(trace.endedAt);
    }
    const [reserve] = told(trace, 'Reserve');
    const [prefill] = told(trace, 'Prefill');
    expect(reserve?.from).to.equal(`${trace.gateway}.frontend`);
    expect(prefill?.from).to.equal(reserve?.to);
    expect(told(trace, 'PrefillDone')[0]).to.include({ from: prefill?.to, to: reserve?.to });
    expect(told(trace, 'ended')).to.have.nested.property('[0].detail', 'complete');
    const { stdout } = await dynact('trace', id);
    expect(stdout).to.match(/^01\w{24} {2}complete {2}x-request-id tale-1\n/);
    expect(stdout).to.match(/ {2}1 +transfer +decode-\d-\w+ +[\d.]+ +[\d.]+ +[\d.]+\n/);
    expect(stdout).to.match(/ Reserve +grant me KV, prefill-\d-\w+ computes \d+ tokens +MAIL \d+\n/);
  });

  it('draws it for Perfetto: named processes and tracks, slices that nest, an arrow within two slices for every message', async () => {
    const file = join(node.folder, 'trace.json');
    await dynact('trace', id, '--perfetto', file);
    const { traceEvents } = JSON.parse(await readFile(file, 'utf8')) as Perfetto;
    const names = new Set<string>();
    const slices = traceEvents.filter(({ ph }) => ph === 'X');
    for (const { ph, name, pid, tid, ts, dur, args } of traceEvents) {
      expect(['X', 'M', 's', 'f']).to.include(ph);
      expect(pid).to.be.a('number');
      if (ph === 'M') names.add(`${name} ${pid} ${name === 'process_name' ? 0 : tid} ${typeof args?.name}`);
      else expect(ts).to.satisfy((at: number) => Number.isInteger(at) && at >= 0);
      if (ph === 'X') expect(dur).to.satisfy((us: number) => Number.isInteger(us) && us > 0);
    }
    for (const { pid, tid } of slices) {
      expect(names).to.include(`process_name ${pid} 0 string`);
      expect(names).to.include(`thread_name ${pid} ${tid} string`);
    }
    expect(slices.map(({ name }) => name)).to.include.members(['queue', 'prefill', 'transfer', 'decode']);
    const flows = traceEvents.filter(({ ph }) => ph === 's' || ph === 'f');
    const ids = new Set(flows.map((flow) => flow.id));
    expect(ids.size).to.be.at.least(5);
    for (const flow of ids) {
      const [start, end] = flows.filter((each) => each.id === flow);
      expect([start?.ph, end?.ph, end?.bp]).to.deep.equal(['s', 'f', 'e']);
      expect(end?.ts).to.be.at.least(start?.ts ?? 0);
      for (const end of [start, flows.filter((each) => each.id === flow)[1]]) {
        const { pid, tid, ts = -1 } = end ?? {};
        const within = slices.filter((slice) => slice.pid === pid && slice.tid === tid);
        expect(within.some((slice) => (slice.ts ?? 0) <= ts && ts <= (slice.ts ?? 0) + (slice.dur ?? 0))).to.equal(
          true,
        );
      }
    }
  });

  it('lists, searches, saves and loads records, and hides prompts and tokens of a node that records none', async () => {
    const listed = lines((await dynact('tape', 'ls', '--req', id, '--json')).stdout);
    expect(listed.map(({ type }) => type)).to.include.members([
      'Reserve',
      'Prefill',
      'PrefillDone',
      'journal',
      'routes',
    ]);
    expect(JSON.stringify(listed)).to.contain('withheld');
    const commands = lines((await dynact('tape', 'grep', 'Prefill(Done)?"', '--stream', 'mail', '--json')).stdout);
    expect(commands.map(({ stream: name }) => name)).to.deep.equal(commands.map(() => 'MAIL')).and.not.be.empty;
    const file = join(node.folder, 'saved.tape');
    expect((await dynact('tape', 'export', file)).stderr).to.match(
      /^\d+ records, \d+ bytes in .* without prompts and tokens/,
    );
    const live = await traced(id);
    const again = { ...live, missing: [] };
    expect({ ...(await traced(id, () => parts.openFile(file))), missing: [] }).to.deep.equal(again);
    await dynact('tape', 'import', file, '--as', 'yesterday');
    expect({ ...(await traced(id, () => parts.openImported(config(), 'yesterday'))), missing: [] }).to.deep.equal(
      again,
    );
    // What was imported is nobody's mail, and no news.
    expect(lines((await dynact('tape', 'ls', '--req', id, '--json')).stdout).length).to.equal(listed.length);

    const bytes = await readFile(file);
    await writeFile(file, bytes.subarray(0, bytes.length / 2));
    const cut = await refused('trace', id, '--file', file);
    expect(cut.code).to.equal(1);
    expect(cut.stderr).to.match(/record \d+ at byte \d+: .*cut short/);
  });

  it('tells of one that runs, follows it to another worker when its own dies, and still knows what the dead one was told', async () => {
    const going = await stream('tale-2', { n: 2 });
    const running = await until('its acceptance to be in the journal', () => traced('tale-2').catch(() => undefined));
    expect(running).to.deep.include({ outcome: 'running', choices: 2, attempts: 1, totalMs: -1 });
    expect(running.phases.at(-1)).to.include({ name: 'decode', to: 0 });
    const victim = running.phases.at(-1)?.where as string;
    await node.kill(victim.slice(0, victim.lastIndexOf('-')));
    const moved = await until('its second attempt', async () => {
      const now = await traced('tale-2');
      return phases(now, 2).includes('decode') && told(now, 'placed').length > 1 && now;
    });
    expect(moved.missing).to.deep.equal([]);
    expect(moved.phases.find(({ attempt, name }) => attempt === 1 && name === 'decode')).to.include({
      where: victim,
      cut: 'Down',
    });
    expect(told(moved, 'Down')[0]?.detail).to.contain(victim);
    expect(told(moved, 'Reserve').map(({ attempt }) => attempt)).to.deep.equal([1, 2]);
    expect(told(moved, 'Reserve')[1]?.detail).to.match(/tokens were delivered before/);
    await going.stop();
    await until('its end', async () => (await traced('tale-2')).outcome === 'cancelled');
  });

  it('tells of one whose gateway died, and who closed its books', async () => {
    const going = await stream('tale-3');
    const { gateway } = await until('its acceptance', () => traced('tale-3').catch(() => undefined));
    await node.kill(gateway.slice(0, gateway.lastIndexOf('-')));
    const lost = await until('its end', async () => {
      const now = await traced('tale-3');
      return now.outcome === 'failed' && now;
    });
    await going.stop();
    expect(lost.code).to.equal('gateway_lost');
    expect(told(lost, 'ended')[0]?.detail).to.match(/^failed gateway_lost, closed by gateway-\d-\w+$/);
    expect(told(lost, 'Down')[0]?.detail).to.contain(gateway);
  });

  it('prints records as they come, until it is interrupted', async () => {
    const tail = spawn(process.execPath, [
      cli,
      'tape',
      'tail',
      '--type',
      'Reserve',
      '--json',
      '--state-dir',
      node.stateDir,
    ]);
    let printed = '';
    tail.stdout.on('data', (data) => {
      printed += data;
    });
    await until('a record', async () => {
      if (printed !== '') return true;
      await (await post('tale-4', { max_tokens: 1 })).text();
      return false;
    });
    tail.kill('SIGINT');
    expect((await once(tail, 'close'))[0]).to.equal(0);
    expect(lines(printed)[0]).to.include({ stream: 'MAIL', type: 'Reserve' });
  });

  it('says what is wrong with a command, and where it looked for a request that nobody knows', async () => {
    expect(await refused('trace', 'nobody'))
      .to.deep.include({ code: 1 })
      .and.property('stderr')
      .match(/no record of nobody: MAIL since/);
    expect((await refused('tape', 'grep', '(')).code).to.equal(2);
  });

  it('leaves mailboxes and tape readable to a client that has nothing of ours: the classic nats package and plain CBOR', async () => {
    const login = JSON.parse(await readFile(join(node.stateDir, 'nats', 'credentials', 'observer.json'), 'utf8'));
    const { url, namespace, user, password } = login as Record<'url' | 'namespace' | 'user' | 'password', string>;
    const nc = await connect({ servers: url, user, pass: password, inboxPrefix: `_INBOX_${user}` });
    try {
      const all = async (stream: string, subject: string) => {
        const deliver = `_INBOX_${user}.${Math.random().toString(36).slice(2)}`;
        const inbox = nc.subscribe(deliver);
        // The plainest consumer there is: no library, one request.
        const name = `c${Math.random().toString(36).slice(2)}`;
        const config = {
          name,
          deliver_subject: deliver,
          filter_subject: subject,
          ack_policy: 'none',
          deliver_policy: 'all',
        };
        const asked = JSON.stringify({
          stream_name: stream,
          config: { ...config, mem_storage: true, inactive_threshold: 5e9 },
        });
        const answer = await nc.request(`$JS.API.CONSUMER.CREATE.${stream}.${name}.${subject}`, Buffer.from(asked));
        const {
          num_pending: pending = 0,
          delivered,
          error,
        } = answer.json<{
          num_pending?: number;
          delivered?: { consumer_seq: number };
          error?: { description: string };
        }>();
        expect(error?.description).to.equal(undefined);
        const found: { subject: string; value: unknown }[] = [];
        const total = pending + (delivered?.consumer_seq ?? 0);
        if (total === 0) return found;
        for await (const message of inbox) {
          found.push({ subject: message.subject, value: plainCbor(message.data) });
          if (found.length === total) break;
        }
        return found;
      };
      const req = id.slice(id.indexOf('-') + 1);
      const mail = await all(`DYN_${namespace}_MAIL`, `dyn.${namespace}.mail.>`);
      const mine = mail.filter(({ value }) => (value as Map).req === req);
      expect(mine.map(({ value }) => (value as Map).type)).to.deep.equal(['Reserve', 'Prefill', 'PrefillDone']);
      const { subject, value } = mine[0] as { subject: string; value: Map };
      expect(subject).to.equal(`dyn.${namespace}.mail.${value.to}`);
      const { work, reply } = value.body as { work: { prompt: number[] }; reply: { gateway: string; num: number } };
      expect(work.prompt.length).to.be.greaterThan(100);

      const frames = await all(`DYN_${namespace}_TAPE`, `dyn.${namespace}.out.>`);
      const steps = frames.filter(({ subject: to, value }) => to.endsWith(reply.gateway) && Array.isArray(value));
      const items = steps.flatMap(
        ({ value }) => (value as unknown[]).slice(3) as [number, number, number, number, number, number[]][],
      );
      const own = items.filter(([num]) => num === reply.num);
      expect(own.reduce((sum, [, , , , , tokens]) => sum + tokens.length, 0)).to.equal(30);
      expect(own.at(-1)?.[4]).to.equal(2);

      const taped = await all(`DYN_${namespace}_TAPE`, `dyn.${namespace}.tape.>`);
      const routes = taped.map(({ value }) => value as { v: number; records?: { id: string; placed: Map }[] });
      const decision = routes.flatMap(({ records = [] }) => records).find((each) => each.id === req);
      expect(`decode.${decision?.placed.decode}.worker`).to.equal(value.to);
    } finally {
      await nc.close();
    }
  });
});
