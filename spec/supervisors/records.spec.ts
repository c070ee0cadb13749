import { appendFile, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import fc from 'fast-check';
import { type RecordParts, recordParts } from '../../supervisors/index.js';
import { type Body, encodeCbor, encodeStep, subjects } from '../../transport/index.js';

type TapeRecord = ReturnType<RecordParts['readRecord']>['record'];

const s = subjects('t');
const request = '01m8rjj8wd7k9r2pwdw375mam0';
const work: Body<'Reserve'>['work'] = {
  model: 'mock',
  prompt: Uint32Array.of(7001, 7002, 7003),
  choices: [{ index: 0, generated: Uint32Array.of(7004) }],
  sampling: {
    ...{ temperature: 1, topK: 0, topP: 1, minP: 0, frequencyPenalty: 0, presencePenalty: 0, repetitionPenalty: 1 },
    ...{ logitBias: [[7005, 1]], seed: 1 },
  },
  ...{ maxTokens: 9, minTokens: 0, ignoreEos: false, logprobs: 2, cacheSalt: 'hush' },
};
const message = (over: Readonly<Record<string, unknown>> = {}) =>
  encodeCbor({
    ...{ v: 1, type: 'Reserve', id: 'a:1', from: 'gateway.g1.frontend', to: 'decode.d1.worker', seq: 1 },
    ...{ req: request, attempt: 1, budgetMs: 1000, ts: 5 },
    body: { work, reply: { gateway: 'g1', num: 3 }, prefill: 'p1' },
    ...over,
  });
const mail = (data: Uint8Array, seq = 1): TapeRecord => ({
  stream: 'MAIL',
  seq,
  at: 1_000 + seq,
  subject: `${s.mailOf('decode', 'd1').slice(0, -1)}worker`,
  data,
});
const step = (seq = 1): TapeRecord => {
  const items = [{ num: 3, attempt: 1, choice: 0, position: 0, tokens: [7006, 7007], finish: 1 }];
  return { stream: 'TAPE', seq, at: 1_010, subject: s.out('g1'), data: encodeStep({ worker: 'd1', seq: 1, items }) };
};
const held = [
  {
    name: 'MAIL' as const,
    storage: 'memory' as const,
    records: 1,
    bytes: 1,
    since: Date.UTC(2100, 0),
    maxAgeMs: 1,
    maxBytes: 1,
  },
];

describe('Records that are read back', () => {
  let parts: RecordParts;
  let folder: string;
  before(async () => {
    parts = await recordParts();
    folder = await mkdtemp(join(tmpdir(), 'dynact-records-'));
  });
  after(() => rm(folder, { recursive: true, force: true }));

  let files = 0;
  async function written(records: readonly TapeRecord[]): Promise<string> {
    files += 1;
    const path = join(folder, `${files}.tape`);
    const file = await parts.writeRecords(path, { namespace: 't', at: 1, full: true, streams: held });
    for (const record of records) await file.write(record);
    expect(await file.end()).to.equal((await stat(path)).size);
    return path;
  }
  const failure = (path: string) =>
    parts.openFile(path).then(
      () => 'it was read',
      (error: Error & { code?: string }) => `${error.code} ${error.message}`,
    );
  const all = async (path: string) => {
    const source = await parts.openFile(path);
    const records: TapeRecord[] = [];
    await source.read({ streams: ['MAIL', 'TAPE'], since: 0 }, (record) => void records.push(record));
    return records;
  };
  const three = () => [mail(message(), 1), mail(message({ type: 'Reserve', attempt: 2 }), 2), step()];

  it('come out of a file as they went in, for their owner alone to read', async () => {
    const path = await written(three());
    expect(await all(path)).to.deep.equal(three());
    expect((await stat(path)).mode & 0o777).to.equal(0o600);
  });

  it('are refused with the record and the offset wherever a file of them is cut short', async () => {
    const bytes = await readFile(await written(three()));
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 0, max: bytes.length - 1 }), async (length) => {
        const path = join(folder, 'cut.tape');
        await writeFile(path, bytes.subarray(0, length));
        const told = await failure(path);
        expect(told).to.match(/^SUP_TAPE_FILE .*(byte 0: |record \d at byte \d+: .*cut short)/);
      }),
      { numRuns: 60 },
    );
  });

  it('are refused wherever a byte of a file is another', async () => {
    const bytes = await readFile(await written(three()));
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 0, max: bytes.length - 1 }),
        fc.integer({ min: 1, max: 255 }),
        async (at, by) => {
          const path = join(folder, 'bent.tape');
          const bent = Buffer.from(bytes);
          bent[at] = (bent[at] as number) ^ by;
          await writeFile(path, bent);
          expect(await failure(path)).to.match(/^SUP_TAPE_FILE .*(byte 0: |record \d at byte \d+: )/);
        },
      ),
      { numRuns: 120 },
    );
  });

  it('are refused when they change places, when one is left out, and when something follows the end', async () => {
    const path = await written(three());
    const bytes = await readFile(path);
    const places: [number, number][] = [];
    for (let at = bytes.indexOf(10) + 1; at < bytes.length; ) {
      const next = at + 12 + bytes.readUInt32BE(at);
      places.push([at, next]);
      at = next;
    }
    const frames = places.map(([from, to]) => bytes.subarray(from, to));
    const line = bytes.subarray(0, bytes.indexOf(10) + 1);
    const [head, a, b, c, end] = frames as [Buffer, Buffer, Buffer, Buffer, Buffer];
    const other = async (...of: readonly Buffer[]) => {
      await writeFile(path, Buffer.concat([line, ...of]));
      return failure(path);
    };
    const second = (places[2] as [number, number])[0];
    expect(await other(head, a, c, b, end)).to.contain(`record 2 at byte ${second}: its digest does not match`);
    expect(await other(head, a, c, end)).to.contain(`record 2 at byte ${second}: its digest does not match`);
    expect(await other(head, a, b, c, end, a)).to.match(/record 4 at byte \d+: there is more after the end/);
    expect(await other(a, b, c, end)).to.match(/record 1 at byte \d+: its digest does not match/);
  });

  it('of a newer format, or of something else, are refused by name; what cannot be opened says so', async () => {
    const path = join(folder, 'foreign.tape');
    await writeFile(path, 'dynact-tape 2\nwhatever it will be');
    expect(await failure(path)).to.contain('byte 0: version 2, and this dynact reads version 1');
    await writeFile(path, '{"json": true}\n');
    expect(await failure(path)).to.contain('byte 0: not a file of `dynact tape export`');
    await writeFile(path, '');
    expect(await failure(path)).to.contain('byte 0: not a file');
    await appendFile(path, 'dynact-tape 1');
    expect(await failure(path)).to.contain('cut short');
    expect(await failure(join(folder, 'nowhere.tape'))).to.contain('cannot be read');
  });

  it('that cannot be understood say why, and which they are, and never throw', () => {
    const why = (data: Uint8Array, subject?: string) => {
      const { content } = parts.readRecord({ ...mail(data), ...(subject !== undefined && { subject }) });
      return content.kind === 'unreadable' ? content.why : content.kind;
    };
    expect(why(message())).to.equal('message');
    expect(why(message({ type: 'Teleport' }))).to.equal('a message of unknown type Teleport');
    expect(why(message({ v: 9 }))).to.contain('version 9, and this dynact reads version 1');
    expect(why(message({ body: {} }))).to.match(/^Reserve: body/);
    expect(why(Uint8Array.of(0xff))).to.contain('not CBOR');
    expect(why(Uint8Array.of(0x81, 2), s.out('g1'))).to.match(/^step frame: /);
    expect(why(encodeCbor({ v: 7 }), s.journal('g1'))).to.contain('journal');
    expect(why(encodeCbor({ v: 7 }), s.tape('gateway', 'g1'))).to.contain('version 7');
    expect(why(Uint8Array.of(1), 'dyn.t.novelty.x')).to.equal('unknown kind of subject: novelty');
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 64 }),
        fc.constantFrom('mail', 'out', 'tape', 'kv', 'journal', 'dead'),
        (data, kind) => {
          const read = parts.readRecord({ ...mail(data), subject: `dyn.t.${kind}.decode.d1.worker` });
          expect(JSON.stringify(parts.toJson(read, true))).to.be.a('string');
          parts.redact(read.record);
        },
      ),
    );
  });

  it('show prompts, tokens, salts and biases only when they may, on the screen and in what is written to files', () => {
    const secrets = /700\d|hush/;
    for (const record of [mail(message()), step()]) {
      const read = parts.readRecord(record);
      expect(JSON.stringify(parts.toJson(read, true))).to.match(secrets);
      expect(JSON.stringify(parts.toJson(read, false))).to.not.match(secrets);
      const bare = parts.readRecord(parts.redact(record));
      expect(bare.content.kind).to.equal(read.content.kind);
      expect(JSON.stringify(parts.toJson(bare, true))).to.not.match(secrets);
    }
    const bare = parts.readRecord(parts.redact(mail(message()))).content;
    expect(bare).to.have.nested.property('message.body.work.prompt.length', 3);
  });

  it('are chosen by what they are, whose they are and whom they concern', () => {
    const read = parts.readRecord(mail(message()));
    const passes = (filter: Parameters<RecordParts['passes']>[0]) => parts.passes(filter)(read);
    expect(passes({})).to.equal(true);
    expect(passes({ req: `chatcmpl-${request}` })).to.equal(true);
    expect(passes({ req: request.replace('0', '1') })).to.equal(false);
    expect(passes({ type: 'reserve', component: 'decode', actor: 'd1.worker' })).to.equal(true);
    expect(passes({ component: 'gateway' })).to.equal(true);
    expect(passes({ component: 'prefill' })).to.equal(false);
    expect(passes({ actor: 'd2' })).to.equal(false);
    expect(parts.complaintAbout({ type: 'Reserv' })).to.contain('did you mean Reserve?');
    expect(parts.complaintAbout({ component: 'gpu' })).to.contain('one of gateway, prefill');
    expect(parts.sinceOf('5m', 1_000_000)).to.equal(700_000);
    expect(parts.sinceOf('yesterday', 0)).to.equal(undefined);
    expect(parts.streamsOf('tape,mail')).to.deep.equal(['MAIL', 'TAPE']);
    expect(parts.streamsOf('jobs')).to.equal(undefined);
  });

  it('of a request whose records are partly gone say what is missing, and why', async () => {
    const path = await written([step()]);
    const gone = await failureOf(parts.gather(await parts.openFile(path), request));
    expect(gone).to.match(/^SUP_TRACE no record of 01m8/);
    const late = { ...mail(message({ attempt: 2 }), 5), at: Date.now() };
    const [evidence] = await parts.gather(await parts.openFile(await written([late])), `chatcmpl-${request}`);
    const trace = parts.traceOf(evidence as NonNullable<typeof evidence>);
    expect(trace.missing.join('\n'))
      .to.match(/the order of attempt 1: MAIL/)
      .and.match(/router's decisions: TAPE is empty/)
      .and.match(/its entry in the journal/);
    expect(trace.outcome).to.equal('unknown');
  });

  const failureOf = (promise: Promise<unknown>) =>
    promise.then(
      () => 'it was found',
      (error: Error & { code?: string }) => `${error.code} ${error.message}`,
    );
});
