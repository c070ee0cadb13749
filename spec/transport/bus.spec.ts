/** The same properties on both buses. */
import { expect } from 'chai';
import {
  type Address,
  address,
  announce,
  type Body,
  type Bus,
  createMemoryBroker,
  createPost,
  decodeCbor,
  type Envelope,
  encodeCbor,
  type InstanceEvent,
  listenFrames,
  openMailbox,
  type StepFrame,
  type Stored,
  serveQueries,
  subjects,
  watchInstances,
} from '../../transport/index.js';
import { type Broker, codeOf, fresh, Gate, head, startBroker } from './kit.js';

interface Side {
  readonly name: string;
  open(): Promise<void>;
  connect(): Promise<Bus>;
  close(): Promise<void>;
}

const leaseMs = 1_500;

function memorySide(): Side {
  let broker = createMemoryBroker({ namespace: 'spec', leaseMs });
  return {
    name: 'in memory',
    async open() {
      broker = createMemoryBroker({ namespace: 'spec', leaseMs });
    },
    connect: async () => broker.connect(),
    async close() {},
  };
}

function natsSide(): Side {
  let broker: Broker;
  return {
    name: 'on NATS',
    async open() {
      broker = await startBroker({ settings: { leaseMs } });
    },
    connect: () => broker.connect(),
    close: () => broker.stop(),
  };
}

const cancel = (num: number) => ({ reply: { gateway: 'gw', num }, reason: 'spec' });

for (const side of [memorySide(), natsSide()]) {
  describe(`The bus ${side.name}`, function () {
    this.timeout(30_000);
    let a: Bus;
    let b: Bus;
    const s = subjects('spec');

    before(async () => {
      await side.open();
      a = await side.connect();
      b = await side.connect();
    });
    after(async () => {
      await a.close();
      await b.close();
      await side.close();
    });

    it('delivers commands of one sender once each and in the order they were given', async () => {
      const to = fresh();
      const from = fresh('gateway', 'frontend');
      const gate = new Gate();
      const got: number[] = [];
      const box = await openMailbox(b, to, (mail) => {
        if (mail.type === 'Cancel') got.push(mail.body.reply.num);
        gate.change();
      });
      const post = createPost(a);
      const sent = Array.from({ length: 500 }, (_, num) => post.command(from, to, 'Cancel', cancel(num), head()));
      await Promise.all(sent);
      await gate.until(() => got.length === 500);
      expect(got).to.deep.equal(Array.from({ length: 500 }, (_, num) => num));
      expect(box.counters.duplicates).to.equal(0);
      box.stop();
      post.close();
    });

    it('delivers mail that was stored before its mailbox was opened', async () => {
      const to = fresh();
      const post = createPost(a);
      await post.command(fresh('gateway', 'frontend'), to, 'Cancel', cancel(7), head({ req: 'early', attempt: 3 }));
      const gate = new Gate();
      let mail: Envelope | undefined;
      const box = await openMailbox(b, to, (m) => {
        mail = m;
        gate.change();
      });
      await gate.until(() => mail !== undefined);
      expect(mail).to.deep.include({ v: 1, type: 'Cancel', to, req: 'early', attempt: 3, body: cancel(7) });
      expect(mail?.budgetMs).to.be.within(9_000, 10_000);
      box.stop();
      post.close();
    });

    it('stores one message for many publishes under one message id', async () => {
      const subject = s.mail(fresh());
      const first = await a.store(subject, encodeCbor({ n: 1 }), 'same-id', 5_000);
      expect(await a.store(subject, encodeCbor({ n: 1 }), 'same-id', 5_000)).to.equal(first);
      const seen: number[] = [];
      const gate = new Gate();
      const stop = await b.follow('MAIL', subject, 'start', ({ seq }) => {
        seen.push(seq);
        gate.change();
      });
      await a.store(subject, encodeCbor({ n: 2 }), 'other-id', 5_000);
      await gate.until(() => seen.length >= 2);
      expect(seen[0]).to.equal(first);
      expect(seen).to.have.length(2);
      stop();
    });

    it('stores a message that must follow a certain one, or says that another came first', async () => {
      const subject = s.journal('gateway-9-a');
      const put = (n: number, after: number) => a.store(subject, Uint8Array.of(n), `journal-${n}`, 5_000, { after });
      const first = await put(1, 0);
      expect(await codeOf(put(2, 0))).to.equal('NET_CONFLICT');
      const third = await put(3, first);
      expect(await codeOf(put(4, first))).to.equal('NET_CONFLICT');
      await a.store(s.journal('gateway-9-b'), Uint8Array.of(9), 'journal-9', 5_000);
      const found = await b.latest('JOURNAL', s.all('journal'));
      expect(found.map((last) => [last.subject, ...last.data])).to.have.deep.members([
        [subject, 3],
        [s.journal('gateway-9-b'), 9],
      ]);
      expect((await b.latest('JOURNAL', subject)).map(({ seq }) => seq)).to.deep.equal([third]);
      expect(await b.latest('JOURNAL', s.journal('nobody'))).to.deep.equal([]);
    });

    it('reads what a stream holds under a filter, in order and up to now, and leaves out what is not wanted', async () => {
      const mine = s.tape('gateway', 'gateway-8-a');
      for (const n of [1, 2, 3, 4]) await a.store(mine, Uint8Array.of(n), `tape-${n}`, 5_000);
      await a.store(s.tape('decode', 'decode-8-a'), Uint8Array.of(9), 'tape-9', 5_000);
      const even = ({ data }: Stored) => (data[0] as number) % 2 === 0 || undefined;
      const read = (pick: (message: Stored) => unknown) => b.read('TAPE', s.tape('gateway', '*'), pick);
      expect(await read(({ data }) => data[0])).to.deep.equal([1, 2, 3, 4]);
      expect(await read(even)).to.deep.equal([true, true]);
      expect(await b.read('TAPE', s.tape('gateway', 'nobody'), even)).to.deep.equal([]);
    });

    it('keeps on reading after a handler threw, and the message is in DEAD', async () => {
      const to = fresh();
      const gate = new Gate();
      const got: number[] = [];
      const dead: { code: string; detail: string; bytes: Uint8Array }[] = [];
      const stop = await b.follow('DEAD', s.dead('decode'), 'new', ({ data }) => {
        dead.push(decodeCbor(data) as (typeof dead)[number]);
        gate.change();
      });
      const box = await openMailbox(b, to, (mail) => {
        if (mail.type !== 'Cancel') return;
        if (mail.body.reply.num === 1) throw new Error('handler of the spec');
        got.push(mail.body.reply.num);
        gate.change();
      });
      const post = createPost(a);
      const from = fresh('gateway', 'frontend');
      for (const num of [0, 1, 2]) await post.command(from, to, 'Cancel', cancel(num), head());
      await gate.until(() => got.length === 2 && dead.length === 1);
      expect(got).to.deep.equal([0, 2]);
      expect(dead[0]).to.deep.include({ code: 'NET_HANDLER', detail: 'handler of the spec', attempt: 1 });
      expect((decodeCbor(dead[0]?.bytes as Uint8Array) as Envelope).body).to.deep.equal(cancel(1));
      expect(box.counters.failed).to.equal(1);
      box.stop();
      stop();
      post.close();
    });

    it('puts malformed, unknown, foreign and misaddressed mail into DEAD, tells the gateway, and goes on', async () => {
      const to = fresh();
      const gateway = fresh('gateway', 'frontend');
      const incarnation = gateway.split('.')[1] as string;
      const gate = new Gate();
      const codes: string[] = [];
      const refused: Envelope[] = [];
      const got: Envelope[] = [];
      const box = await openMailbox(
        b,
        to,
        (mail) => {
          got.push(mail);
          gate.change();
        },
        { onDropped: (code) => codes.push(code) },
      );
      const frames = listenFrames(a, 'out', gateway, {
        message: (envelope) => {
          refused.push(envelope);
          gate.change();
        },
      });
      await a.flush();
      const good = {
        v: 1,
        type: 'Cancel',
        id: 'x',
        from: gateway,
        to,
        seq: 1,
        req: 'r',
        attempt: 2,
        budgetMs: 5_000,
        ts: 0,
      };
      const body = { reply: { gateway: incarnation, num: 5 }, reason: '' };
      const bad: Uint8Array[] = [
        Uint8Array.of(0xff, 0x00, 0x12),
        new Uint8Array(0),
        encodeCbor([1, 2, 3]),
        encodeCbor({ ...good, v: 2, body }),
        encodeCbor({ ...good, type: 'Frobnicate', body }),
        encodeCbor({ ...good, type: 'constructor', body }),
        encodeCbor({ ...good, body: { reply: { gateway: incarnation, num: -1 }, reason: '' } }),
        encodeCbor({ ...good, body: { reply: body.reply, reason: 17 } }),
        encodeCbor({ ...good, budgetMs: Number.NaN, body }),
        encodeCbor({ ...good, to: fresh(), body }),
        encodeCbor({ ...good, type: 'Ended', body: { reply: body.reply } }),
      ];
      for (const [n, bytes] of bad.entries()) await a.store(s.mail(to), bytes, `${to}-bad-${n}`, 5_000);
      const nobody = `${to}er` as Address;
      await a.store(s.mail(nobody), encodeCbor({ ...good, to: nobody, body }), `${to}-nobody`, 5_000);
      await a.store(s.mail(to), encodeCbor({ ...good, body, future: 'field' }), `${to}-good`, 5_000);
      await gate.until(() => got.length === 1 && refused.length >= 7);
      expect(codes).to.deep.equal([
        'NET_MALFORMED',
        'NET_MALFORMED',
        'NET_MALFORMED',
        'NET_VERSION',
        'NET_UNKNOWN_TYPE',
        'NET_UNKNOWN_TYPE',
        'NET_MALFORMED',
        'NET_MALFORMED',
        'NET_MALFORMED',
        'WRK_WRONG_INCARNATION',
        'NET_MALFORMED',
        'WRK_UNKNOWN_ACTOR',
      ]);
      const told = refused.map(({ body }) => (body as Body<'Refused'>).code);
      expect(told).to.include.members(['WRK_WRONG_INCARNATION', 'WRK_UNKNOWN_ACTOR']);
      expect(refused[0]).to.deep.include({ type: 'Refused', req: 'r', attempt: 2 });
      expect(refused[0]?.body).to.deep.include({ num: 5, leg: 'decode', code: 'NET_VERSION' });
      frames.stop();
      box.stop();
    });

    it('carries a command of several megabytes in chunks and gives it to the reader whole', async () => {
      const to = fresh();
      const prompt = Uint32Array.from({ length: 700_000 }, (_, i) => i * 2_654_435_761);
      const work = {
        model: 'm',
        prompt,
        choices: [{ index: 0, generated: new Uint32Array() }],
        sampling: {
          temperature: 0,
          topK: 0,
          topP: 1,
          minP: 0,
          frequencyPenalty: 0,
          presencePenalty: 0,
          repetitionPenalty: 1,
          logitBias: [],
          seed: Number.MAX_SAFE_INTEGER,
        },
        maxTokens: 1,
        minTokens: 0,
        ignoreEos: false,
        logprobs: 0,
        cacheSalt: '',
      };
      const gate = new Gate();
      const got: Envelope[] = [];
      const box = await openMailbox(b, to, (mail) => {
        got.push(mail);
        gate.change();
      });
      const post = createPost(a);
      await post.command(
        address('gateway', 'g', 'f'),
        to,
        'Generate',
        { work, reply: { gateway: 'g', num: 1 } },
        head(),
      );
      await gate.until(() => got.length === 1);
      expect(got[0]?.type).to.equal('Generate');
      expect(got[0]?.body).to.deep.equal({ work, reply: { gateway: 'g', num: 1 } });
      expect(box.counters.malformed).to.equal(0);
      box.stop();
      post.close();
    });

    it('refuses a manifest whose chunks are missing or damaged', async () => {
      const to = fresh();
      const from = fresh('gateway', 'f');
      const codes: string[] = [];
      const gate = new Gate();
      const box = await openMailbox(b, to, () => expect.fail('delivered'), {
        onDropped: (code, detail) => {
          codes.push(`${code} ${detail}`);
          gate.change();
        },
      });
      const chunks = { parts: 1, bytes: 3, sha256: '0'.repeat(64) };
      const envelope = { v: 1, type: 'Cancel', from, to, seq: 1, req: '', attempt: 1, budgetMs: 5_000, ts: 0, chunks };
      await a.store(s.mail(to), encodeCbor({ ...envelope, id: 'lost' }), `${to}-1`, 5_000);
      await a.store(
        s.mail(to),
        encodeCbor({ v: 1, type: 'Chunk', of: 'bent', part: 0, data: Uint8Array.of(1, 2, 3) }),
        `${to}-2`,
        5_000,
      );
      await a.store(s.mail(to), encodeCbor({ ...envelope, id: 'bent' }), `${to}-3`, 5_000);
      await a.store(
        s.mail(to),
        encodeCbor({ ...envelope, id: 'huge', chunks: { ...chunks, bytes: 1e12 } }),
        `${to}-4`,
        5_000,
      );
      await gate.until(() => codes.length === 3);
      expect(codes).to.deep.equal([
        'NET_INCOMPLETE no chunks of lost',
        'NET_INCOMPLETE chunks are damaged',
        'NET_INCOMPLETE manifest: bytes',
      ]);
      box.stop();
    });

    it('carries step frames with log probabilities and cached counts, and frames by kind', async () => {
      const gateway = fresh('gateway', 'frontend');
      const worker = fresh('decode');
      const frame: StepFrame = {
        worker: worker.split('.')[1] as string,
        seq: 70_000,
        items: [
          {
            num: 2 ** 40,
            attempt: 1,
            choice: 0,
            position: 0,
            tokens: [0, 23, 24, 255, 256, 65_536, 4_294_967_295],
            finish: 0,
            cached: 64,
          },
          {
            num: 3,
            attempt: 2,
            choice: 127,
            position: 300,
            tokens: [5],
            finish: 1,
            logprobs: [
              [
                -0.5,
                [
                  [5, -0.5],
                  [6, -1e300],
                ],
              ],
            ],
          },
          { num: 4, attempt: 1, choice: 0, position: 9, tokens: [], finish: 2 },
        ],
      };
      const gate = new Gate();
      const steps: StepFrame[] = [];
      const messages: Envelope[] = [];
      const listeners = [
        listenFrames(b, 'out', gateway, {
          step: (f) => {
            steps.push(f);
            gate.change();
          },
          message: (e) => {
            messages.push(e);
            gate.change();
          },
        }),
        listenFrames(b, 'load', gateway, {
          message: (e) => {
            messages.push(e);
            gate.change();
          },
        }),
        listenFrames(b, 'down', gateway, {
          message: (e) => {
            messages.push(e);
            gate.change();
          },
        }),
      ];
      await b.flush();
      const post = createPost(a);
      post.step(gateway.split('.')[1] as string, frame);
      const progress = { num: 1, leg: 'decode', worker: frame.worker, done: 1, total: 2 } as const;
      post.frame(worker, gateway, 'Progress', progress, head());
      const load = {
        incarnation: worker.split('.')[1] as string,
        slots: 1,
        busySlots: 0,
        waiting: 0,
        queued: 0,
        kvBlocks: 0,
        usedKvBlocks: 0,
        cachedBlocks: 0,
        steps: 0,
        rssBytes: 1,
        jobs: 0,
        leaked: 0,
        everyMs: 250,
      };
      post.frame(worker, gateway, 'Load', load, head());
      post.frame(worker, worker, 'Down', { incarnation: load.incarnation, reason: 'spec' }, head());
      await gate.until(() => steps.length === 1 && messages.length === 3);
      expect(steps[0]).to.deep.equal(frame);
      expect(messages.map((m) => m.type).sort()).to.deep.equal(['Down', 'Load', 'Progress']);
      for (const listener of listeners) listener.stop();
      post.close();
    });

    it('answers queries with a checked body, refuses what it does not know, and has a deadline', async () => {
      const worker = fresh();
      const gateway = address('gateway', 'g', 'frontend');
      const post = createPost(a);
      const question = { reply: { gateway: 'g', num: 1 }, attempt: 1, positions: [[0, 3]] as [number, number][] };
      expect(await codeOf(post.query(gateway, worker, 'Resync', question, 'Resynced', 2_000))).to.equal(
        'NET_NO_RESPONDER',
      );
      let mode: 'good' | 'throw' | 'wrong' = 'good';
      const items = [{ choice: 0, position: 3, tokens: Uint32Array.of(1, 2), finish: 1 }];
      const stop = serveQueries(b, worker, {
        Resync: {
          answer: 'Resynced',
          handle(envelope) {
            if (mode === 'throw') throw new Error('broken');
            if (mode === 'wrong') return { known: 'yes' } as never;
            expect(envelope.body).to.deep.equal(question);
            return { known: true, items };
          },
        },
      });
      await b.flush();
      expect(await post.query(gateway, worker, 'Resync', question, 'Resynced', 5_000)).to.deep.equal({
        known: true,
        items,
      });
      mode = 'wrong';
      expect(await codeOf(post.query(gateway, worker, 'Resync', question, 'Resynced', 5_000))).to.equal(
        'NET_MALFORMED',
      );
      mode = 'throw';
      expect(await codeOf(post.query(gateway, worker, 'Resync', question, 'Resynced', 5_000))).to.equal('NET_REFUSED');
      expect(await codeOf(post.query(gateway, worker, 'Cancel', cancel(1), 'Resynced', 5_000))).to.equal('NET_REFUSED');
      stop();
      const silent = fresh();
      const quiet = b.serve(s.query(silent), () => new Promise<Uint8Array>(() => {}));
      await b.flush();
      expect(await codeOf(post.query(gateway, silent, 'Resync', question, 'Resynced', 50))).to.equal('NET_TIMEOUT');
      quiet();
      post.close();
    });

    it('shows instances as added, changed and gone: withdrawn at once, silent ones when their lease ends', async () => {
      const gate = new Gate();
      const events: InstanceEvent[] = [];
      const watch = await watchInstances(
        b,
        (event) => {
          events.push(event);
          gate.change();
        },
        { leaseMs },
      );
      await watch.ready;
      const info = { component: 'decode', instance: 'd', node: 'n', host: 'h', pid: 1, draining: false } as const;
      const one = announce(a, { ...info, incarnation: 'one' }, { leaseMs });
      const dying = await side.connect();
      announce(dying, { ...info, incarnation: 'two' }, { leaseMs });
      await gate.until(() => events.length === 2);
      one.update({ ...info, incarnation: 'one', draining: true });
      await gate.until(() => events.length === 3);
      expect(events[2]).to.deep.equal({ kind: 'changed', info: { ...info, incarnation: 'one', draining: true } });
      await one.withdraw();
      await gate.until(() => events.length === 4);
      expect(events[3]).to.deep.include({ kind: 'gone' });
      expect(events[3]?.info.incarnation).to.equal('one');
      await dying.close();
      await gate.until(() => events.length === 5);
      expect(events[4]?.kind).to.equal('gone');
      expect(events[4]?.info.incarnation).to.equal('two');
      watch.stop();
    });

    it('brings a router what the others say of themselves; what is malformed, too large or said for another is dropped and counted', async () => {
      const gateway = fresh('gateway', 'router');
      const other = fresh('gateway', 'router');
      const name = other.split('.')[1] as string;
      const gate = new Gate();
      const heard: Envelope[] = [];
      const listener = listenFrames(b, 'replica', gateway, {
        message(envelope) {
          heard.push(envelope);
          gate.change();
        },
      });
      await b.flush();
      const post = createPost(a);
      const lists = { workers: [], placed: [], began: [], handed: [], over: [], waiting: [], failed: [], want: [] };
      const hashes = Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8);
      const placed = [{ num: 1, attempt: 1, decode: 0, stage: 0, units: 1, promptTokens: 64, toCompute: 64, hashes }];
      const body = { ...lists, seq: 1, workers: ['d'], placed, held: 1 };
      const foreign: Uint8Array[] = [];
      const copy = a.subscribe(s.replica('gateway', name), (bytes) => foreign.push(Uint8Array.from(bytes)));
      await a.flush();
      post.frame(other, other, 'Replica', body, head());
      await gate.until(() => heard.length === 1);
      await a.flush();
      a.send(s.replica('gateway', 'somebody-else'), foreign[0] as Uint8Array);
      a.send(s.replica('gateway', name), Uint8Array.of(0x83, 1, 2));
      a.send(s.replica('gateway', name), new Uint8Array(900 * 1024));
      post.frame(other, other, 'Replica', { ...body, seq: -1 }, head());
      post.frame(other, other, 'Replica', { ...body, seq: 2 }, head());
      await gate.until(() => heard.length === 2);
      expect(heard.map(({ body: said }) => said)).to.deep.equal([body, { ...body, seq: 2 }]);
      expect(listener.counters).to.deep.include({ received: 6, malformed: 4, failed: 0 });
      copy();
      listener.stop();
      post.close();
    });

    it('reports a throwing frame handler and keeps the connection alive', async () => {
      const gateway = fresh('gateway', 'frontend');
      const gate = new Gate();
      let calls = 0;
      const listener = listenFrames(b, 'out', gateway, {
        step() {
          calls += 1;
          gate.change();
          throw new Error('spec');
        },
      });
      await b.flush();
      const post = createPost(a);
      const name = gateway.split('.')[1] as string;
      for (let seq = 0; seq < 3; seq++) post.step(name, { worker: 'w', seq, items: [] });
      a.send(s.out(name), Uint8Array.of(0x83, 1, 2));
      post.step(name, { worker: 'w', seq: 9, items: [] });
      await gate.until(() => calls === 4);
      expect(listener.counters).to.deep.include({ failed: 4, malformed: 1 });
      await b.flush();
      listener.stop();
      post.close();
    });
  });
}
