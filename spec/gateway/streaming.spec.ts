import { once } from 'node:events';
import { createServer as createNetServer, type Socket } from 'node:net';
import { expect } from 'chai';
import { type Call, chatBody, events, openRig, openSocket, post, type Rig, send } from './scripted-frontend.js';

const path = '/v1/chat/completions';

function request(body: unknown): string {
  const text = JSON.stringify(body);
  return `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`;
}

/** Resolves when the socket has received `count` times `text`. */
async function receives(socket: Socket, received: () => string, text: string): Promise<void> {
  while (!received().includes(text)) await once(socket, 'data');
}

describe('Streaming', () => {
  let rig: Rig;
  afterEach(() => rig.close());
  const usage = { promptTokens: 1, completionTokens: 1, cachedTokens: 0 };
  const last = (): Call => rig.calls.at(-1) as Call;

  it('sends headers and the role as soon as the request is admitted, before any token', async () => {
    rig = await openRig({ script: ({ prepared, stream }) => stream.begin('r', prepared) });
    const { socket, received } = await openSocket(rig.port);
    socket.write(request(chatBody({ stream: true })));
    await receives(socket, received, '"role":"assistant"');
    expect(received()).to.match(/^HTTP\/1\.1 200 /);
    socket.destroy();
    await rig.until(() => rig.gone.length === 1, 'ClientGone');
  });

  it('puts all events of one turn into one chunk on the wire', async () => {
    rig = await openRig({
      script({ prepared, stream }) {
        stream.begin('r', prepared);
        for (let token = 0; token < 50; token++) stream.text(0, `t${token}`, 1);
        stream.finish(0, 'length');
        stream.end(usage);
      },
    });
    const { socket, received } = await openSocket(rig.port);
    socket.write(request(chatBody({ stream: true })));
    await receives(socket, received, '0\r\n\r\n');
    socket.destroy();
    const wire = received().slice(received().indexOf('\r\n\r\n') + 4);
    const size = Number.parseInt(wire, 16);
    const chunk = wire.slice(wire.indexOf('\r\n') + 2);
    expect(chunk.slice(size)).to.equal('\r\n0\r\n\r\n');
    expect(events(chunk.slice(0, size))).to.have.length(53);
  });

  it('tells the frontend once when the client leaves: before begin, between tokens, after the end, streaming or not', async () => {
    rig = await openRig({ script: () => undefined });
    const leave = async (stream: boolean, act: (call: Call) => void) => {
      const before = rig.calls.length;
      const { socket } = await openSocket(rig.port);
      socket.write(request(chatBody({ stream })));
      await rig.until(() => rig.calls.length > before, 'the request');
      const call = last();
      act(call);
      socket.destroy();
      return call;
    };
    for (const stream of [true, false]) {
      for (const act of [
        () => undefined,
        (call: Call) => call.stream.begin('r', call.prepared),
        (call: Call) => {
          call.stream.begin('r', call.prepared);
          call.stream.text(0, 'a', 1);
        },
      ]) {
        const call = await leave(stream, act);
        await rig.until(() => rig.gone.includes(call.ticket), 'ClientGone');
        expect(rig.gone.filter((ticket) => ticket === call.ticket)).to.have.length(1);
        // The frontend may not have noticed yet; nothing it still says does harm.
        call.stream.begin('r', call.prepared);
        call.stream.text(0, 'late', 1);
        call.stream.finish(0, 'stop');
        call.stream.end(usage);
        call.stream.fail({ status: 500, type: 'x', code: null, param: null, message: 'late' });
      }
      const lines = rig.log.length;
      const call = await leave(stream, ({ stream: out, prepared }) => {
        out.begin('r', prepared);
        out.end(usage);
      });
      await rig.until(() => rig.log.length > lines, 'the log line');
      expect(rig.gone).not.to.include(call.ticket);
    }
    expect(rig.gateway.inFlight).to.equal(0);
    const outcomes = rig.log.map(({ outcome, status }) => `${outcome} ${status}`);
    expect(outcomes.filter((outcome) => outcome === 'cancelled 499')).to.have.length(6);
    expect(outcomes.filter((outcome) => outcome === 'complete 200')).to.have.length(2);
  });

  it('repeats ClientGone until a full mailbox takes it', async () => {
    let refusals = 3;
    rig = await openRig({
      script: () => undefined,
      accept: (message) => message.type === 'Submit' || refusals-- <= 0,
    });
    const { socket } = await openSocket(rig.port);
    socket.write(request(chatBody()));
    await rig.until(() => rig.calls.length === 1, 'the request');
    socket.destroy();
    await rig.until(() => rig.gone.length === 1, 'ClientGone');
    expect(refusals).to.be.below(0);
  });

  it('gives up every prompt of a batch when the client leaves, and the others when one is refused', async () => {
    rig = await openRig({ script: () => undefined });
    const body = JSON.stringify({ model: 'mock', prompt: ['a', 'b', 'c'] });
    const first = await openSocket(rig.port);
    first.socket.write(
      `POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    );
    await rig.until(() => rig.calls.length === 3, 'the prompts');
    first.socket.destroy();
    await rig.until(() => rig.gone.length === 3, 'ClientGone of each');
    const pending = send(rig, '/v1/completions', { body });
    await rig.until(() => rig.calls.length === 6, 'the prompts');
    const [a, b, c] = rig.calls.slice(3) as [Call, Call, Call];
    a.stream.begin('a', a.prepared);
    a.stream.text(0, 'shown to nobody', 1);
    b.stream.fail({ status: 529, type: 'server_error', code: 'overloaded', param: null, message: 'full' });
    c.stream.begin('c', c.prepared);
    expect((await pending).status).to.equal(529);
    expect(rig.gone.slice(3)).to.have.members([a.ticket, c.ticket]);
  });

  it('cuts a reader off that leaves too much unread, and names the reason', async function () {
    this.timeout(20_000);
    rig = await openRig({
      limits: { unsentBytes: 256 * 1024 },
      script: ({ prepared, stream }) => stream.begin('r', prepared),
    });
    const { socket } = await openSocket(rig.port);
    socket.pause();
    socket.write(request(chatBody({ stream: true })));
    await rig.until(() => rig.calls.length === 1, 'the request');
    const { stream } = last();
    let said = 0;
    while (rig.gone.length === 0 && said < 64) {
      stream.text(0, 'x'.repeat(1024 * 1024), 1);
      said++;
      await new Promise((resolve) => setImmediate(resolve));
    }
    // What the kernel buffers comes on top of the bound.
    expect(said).to.be.below(32);
    expect(rig.gone).to.have.length(1);
    expect(rig.log.at(-1)).to.include({ outcome: 'cancelled', code: 'slow_reader' });
    const metrics = (await send(rig, '/metrics')).text;
    expect(metrics).to.include('dynact_slow_readers_total 1');
    socket.destroy();
  });

  it('does not cut a reader off that takes a long answer at its own pace', async () => {
    rig = await openRig({ limits: { unsentBytes: 64 * 1024 } });
    const reply = await post(rig, path, chatBody({ stream: true }));
    expect(reply.text).to.include('[DONE]');
  });

  it('sends comments while nothing else is sent, on every silent stream, and none to a collected answer', async () => {
    rig = await openRig({ limits: { keepAliveMs: 40 }, script: ({ prepared, stream }) => stream.begin('r', prepared) });
    const first = await openSocket(rig.port);
    const second = await openSocket(rig.port);
    first.socket.write(request(chatBody({ stream: true })));
    second.socket.write(request(chatBody({ stream: false })));
    await receives(first.socket, first.received, ': keep-alive\n\n');
    await rig.until(() => rig.calls.length === 2, 'both requests');
    for (const { stream } of rig.calls) {
      stream.text(0, 'a', 1);
      stream.finish(0, 'stop');
      stream.end(usage);
    }
    await receives(first.socket, first.received, '[DONE]');
    await receives(second.socket, second.received, '}}}');
    expect(second.received()).not.to.include(': keep-alive\n');
    expect(events(first.received().replace(/\r\n[0-9a-f]+\r\n/g, '')).at(-1)).to.equal('[DONE]');
    first.socket.destroy();
    second.socket.destroy();
  });

  it('drains: unready but live, lets answers finish, refuses new requests, then closes', async () => {
    rig = await openRig({ script: ({ prepared, stream }) => stream.begin('r', prepared) });
    const { socket, received, closed } = await openSocket(rig.port);
    const idle = await openSocket(rig.port);
    idle.socket.write('GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n');
    await receives(idle.socket, idle.received, '{"status":"ready"}');
    socket.write(request(chatBody({ stream: true })));
    await rig.until(() => rig.calls.length === 1, 'the request');
    const stopped = rig.gateway.stop(5000);
    // Whoever watches has half a second to see it.
    const [ready, live] = await Promise.all([send(rig, '/ready'), send(rig, '/live')]);
    expect([ready.status, live.status]).to.deep.equal([503, 200]);
    expect(ready.body).to.include({ reason: 'draining' });
    await idle.closed;
    last().stream.text(0, 'still', 1);
    last().stream.finish(0, 'stop');
    last().stream.end(usage);
    await Promise.all([stopped, closed]);
    expect(received()).to.include('still').and.include('[DONE]');
    expect(rig.gone).to.deep.equal([]);
    expect(await send(rig, '/live').catch((error: NodeJS.ErrnoException) => error.code)).to.equal('ECONNREFUSED');
  });

  it('ends what is left at the drain deadline with an error event, and tells the frontend', async () => {
    rig = await openRig({ script: ({ prepared, stream }) => stream.begin('r', prepared) });
    const { socket, received, closed } = await openSocket(rig.port);
    socket.write(request(chatBody({ stream: true })));
    await receives(socket, received, '"role"');
    await rig.gateway.stop(50);
    await closed;
    expect(received()).to.include('"code":"shutting_down"').and.not.include('[DONE]');
    expect(rig.gone).to.deep.equal([last().ticket]);
  });

  it('serves on a socket that somebody else listens on', async () => {
    const listener = createNetServer();
    await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
    rig = await openRig({ listen: { server: listener } });
    expect((await send(rig, '/live')).body).to.deep.equal({ status: 'live' });
    await rig.close();
    listener.close();
  });
});
