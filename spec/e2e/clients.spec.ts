import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import fc from 'fast-check';
import { type Answer, ask } from './client.js';
import { endNodes, patienceMs, startNode, type TestNode, until, untilIdle } from './node-kit.js';

const canary = 'canary-7f3a91c2';

/** A request as bytes, so that a client may stop anywhere in it. */
function request(body: object): Buffer {
  const json = Buffer.from(JSON.stringify({ model: 'mock', ...body }));
  const head = `POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${json.length}\r\n\r\n`;
  return Buffer.concat([Buffer.from(head), json]);
}

async function post(url: string, body: string | Buffer, headers: Record<string, string> = {}): Promise<Answer> {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
    signal: AbortSignal.timeout(patienceMs),
  });
  const { error } = (await response.json()) as { error: { code: string | null; type: string; message: string } };
  return {
    status: response.status,
    text: error.message,
    finish: null,
    error: error.code ?? error.type,
    retryAfter: response.headers.get('retry-after'),
    usage: null,
    done: true,
  };
}

describe('A node with bad clients', function () {
  this.timeout(180_000);
  let node: TestNode;
  let port: number;
  let usual: Answer;
  const plain = { prompt: 'one two three', max_tokens: 8, seed: 7 };

  before(async () => {
    node = await startNode(['--slots', '16'], { env: { DYNACT_MOCK_STEP_MS: '2', DYNACT_ENGINE_PREFILL_SLOTS: '4' } });
    port = Number(new URL(node.url).port);
    usual = await ask(node.url, plain);
    expect(usual.status).to.equal(200);
  });
  after(endNodes);
  afterEach('serves as before and holds nothing', async () => {
    expect(await ask(node.url, plain)).to.deep.equal(usual);
    await untilIdle(node);
  });

  it('answers bad requests with a 4xx that says what is wrong, and no process minds', async () => {
    const chat = (fields: object) =>
      JSON.stringify({ model: 'mock', messages: [{ role: 'user', content: 'x' }], ...fields });
    const cases: [string, string | Buffer, number][] = [
      ['malformed JSON', '{"model": "mock", ', 400],
      ['an array', '[]', 400],
      [
        'invalid UTF-8',
        Buffer.concat([Buffer.from('{"model":"mock","x":"'), Buffer.from([0xff, 0xc3]), Buffer.from('"}')]),
        400,
      ],
      ['a wrong type', chat({ temperature: 'hot' }), 400],
      ['an unknown model', chat({ model: 'gpt-9' }), 404],
      ['no messages', chat({ messages: [] }), 400],
      ['a prompt that is too long', chat({ messages: [{ role: 'user', content: 'word '.repeat(40_000) }] }), 400],
      ['more choices than a worker has slots', chat({ n: 17 }), 400],
      [
        'internal fields of a hand-off',
        chat({ kv_transfer_params: { do_remote_prefill: true }, bootstrap_room: 1, max_tokens: -1 }),
        400,
      ],
    ];
    for (const [what, bytes, status] of cases) {
      const answer = await post(node.url, bytes);
      expect([what, answer.status]).to.deep.equal([what, status]);
      expect(answer.text).to.match(/^[^\n]{10,300}$/);
    }
    const { processes } = await node.status();
    expect(processes.filter(({ restarts }) => restarts > 0)).to.deep.equal([]);
  });

  it('refuses 100 MB without taking it in', async () => {
    const { rssBytes } = await node.processOf('gateway-0');
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => {});
    socket.write(
      'POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n',
    );
    let answer = '';
    socket.on('data', (data) => {
      answer += data;
    });
    const piece = Buffer.alloc(1024 * 1024, 'a');
    for (let sent = 0; sent < 100 && !socket.destroyed; sent++) {
      const flowing = socket.write(Buffer.concat([Buffer.from('100000\r\n'), piece, Buffer.from('\r\n')]));
      if (!flowing) await Promise.race([once(socket, 'drain'), once(socket, 'close')]).catch(() => {});
    }
    await until('refusal', () => /^HTTP\/1\.1 413 /.test(answer));
    socket.destroy();
    const after = await node.processOf('gateway-0');
    expect(after.restarts).to.equal(0);
    expect(after.rssBytes - rssBytes).to.be.lessThan(64 * 1024 * 1024);
  });

  it('frees everything that 200 clients held who left at random moments', async () => {
    const moments = fc.sample(
      fc.record({
        sent: fc.integer({ min: 0, max: 150 }),
        waitMs: fc.integer({ min: 0, max: 120 }),
        stream: fc.boolean(),
        reset: fc.boolean(),
      }),
      { numRuns: 200, seed: 20_261_130 },
    );
    const whole = { finished: 0 };
    const visit = async ({ sent, waitMs, stream, reset }: (typeof moments)[number], index: number) => {
      const bytes = request({
        prompt: `visitor ${index} ${'and more words '.repeat(index)}`,
        max_tokens: 40,
        ignore_eos: true,
        stream,
      });
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      socket.on('data', () => {});
      socket.write(bytes.subarray(0, Math.floor((Math.min(sent, 100) / 100) * bytes.length)));
      if (sent >= 100) whole.finished++;
      await sleep(waitMs);
      if (reset) socket.resetAndDestroy();
      else socket.destroy();
      if (!socket.closed) await once(socket, 'close');
    };
    for (let first = 0; first < moments.length; first += 50) {
      await Promise.all(moments.slice(first, first + 50).map((moment, index) => visit(moment, first + index)));
    }
    expect(whole.finished).to.be.greaterThan(20);
    await untilIdle(node);
    const crowd = await Promise.all(Array.from({ length: 64 }, () => ask(node.url, plain)));
    expect(new Set(crowd.map(({ text }) => text))).to.deep.equal(new Set([usual.text]));
  });

  it('serves everybody else while 100 clients read nothing', async () => {
    const sockets: Socket[] = [];
    for (let index = 0; index < 100; index++) {
      const socket = connect(port, '127.0.0.1').pause();
      socket.on('error', () => {});
      socket.write(request({ prompt: `slow ${index}`, max_tokens: 200, ignore_eos: true, stream: true }));
      sockets.push(socket);
    }
    const others = await Promise.all(Array.from({ length: 20 }, () => ask(node.url, plain)));
    expect(others.every(({ text }) => text === usual.text)).to.equal(true);
    await untilIdle(node);
    for (const socket of sockets) socket.destroy();
  });

  it('tells requests with one x-request-id apart', async () => {
    const headers = { 'x-request-id': 'the-same' };
    const alone = await Promise.all([1, 2, 3].map((seed) => ask(node.url, { ...plain, seed })));
    const leaving = new AbortController();
    const together = Array.from({ length: 48 }, (_, index) => {
      const body = { ...plain, seed: 1 + (index % 3), stream: true };
      return ask(node.url, body, {
        headers,
        ...(index % 2 ? { signal: leaving.signal, onText: () => leaving.abort() } : {}),
      });
    });
    const answers = await Promise.all(together);
    for (const [index, { text, done }] of answers.entries()) {
      if (index % 2 === 0) expect([text, done]).to.deep.equal([alone[index % 3]?.text, true]);
    }
  });

  it('writes no prompt, answer or key to its logs, and no prompt to its store', async () => {
    const answer = await ask(
      node.url,
      { prompt: `${canary} please`, max_tokens: 12, seed: 1, user: canary },
      { headers: { authorization: `Bearer sk-${canary}` } },
    );
    expect(answer.status).to.equal(200);
    expect((await post(node.url, `{"model":"${canary}`)).status).to.equal(400);
    expect(node.log()).to.contain('"msg":"request"');
    expect(node.log()).not.to.contain(canary);
    expect(answer.text.length).to.be.greaterThan(8);
    expect(node.log()).not.to.contain(answer.text);
  });
});
