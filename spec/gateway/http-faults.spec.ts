import { once } from 'node:events';
import { createConnection } from 'node:net';
import { expect } from 'chai';
import { chatBody, openRig, openSocket, post, type Rig, send } from './scripted-frontend.js';

const path = '/v1/chat/completions';
const body = JSON.stringify(chatBody());

describe('HTTP faults', () => {
  let rig: Rig;
  before(async () => {
    rig = await openRig({ allowedOrigins: ['https://app.example'], allowedHosts: ['llm.example'] });
  });
  after(() => rig.close());

  const raw = async (text: string) => {
    const { socket, received, closed } = await openSocket(rig.port);
    socket.write(text);
    await closed;
    return received();
  };

  it('answers unknown routes and wrong methods with OpenAI’s error body', async () => {
    const cases: [string, string, number][] = [
      ['GET', '/', 404],
      ['GET', '/v2/models', 404],
      ['POST', '/v1/embeddings', 404],
      ['GET', path, 405],
      ['DELETE', '/v1/models', 405],
      ['POST', '/health', 405],
      ['PUT', '/v1/completions', 405],
      ['OPTIONS', path, 405],
      ['GET', '/v1/%zz', 400],
      ['PROPFIND', '/', 404],
    ];
    for (const [method, url, status] of cases) {
      const reply = await send(rig, url, { method });
      expect(reply.status, `${method} ${url}`).to.equal(status);
      expect(reply.body.error, `${method} ${url}`).to.have.all.keys('message', 'type', 'param', 'code');
      expect(reply.headers).to.have.property('x-request-id');
      if (status === 405) expect(reply.headers.allow).to.be.a('string');
    }
  });

  it('takes JSON in UTF-8 only', async () => {
    const types = [
      'text/plain',
      'application/x-www-form-urlencoded',
      'application/json; charset=latin1',
      'multipart/form-data; boundary=x',
      'x',
    ];
    for (const type of types) {
      expect((await send(rig, path, { body, headers: { 'content-type': type } })).status, type).to.equal(415);
    }
    expect((await send(rig, path, { method: 'POST' })).status).to.equal(415);
    expect((await send(rig, path, { body, headers: { 'content-encoding': 'gzip' } })).status).to.equal(415);
    for (const type of ['application/json', 'application/json; charset=utf-8', 'application/json;charset="UTF-8"']) {
      expect((await send(rig, path, { body, headers: { 'content-type': type } })).status, type).to.equal(200);
    }
  });

  it('says 400 to malformed JSON, broken UTF-8, deep nesting and what is no object, without quoting it', async () => {
    const cases: (string | Uint8Array)[] = [
      '',
      '{',
      '{"a":1,}',
      '[]',
      'null',
      '"str"',
      '5',
      `${'['.repeat(65)}${']'.repeat(65)}`,
      '{"a":'.repeat(10_000),
      '"canary-7f3',
      Buffer.concat([Buffer.from('{"model":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}')]),
    ];
    for (const text of cases) {
      const reply = await send(rig, path, { body: text });
      expect(reply.status, String(text).slice(0, 30)).to.equal(400);
      expect(reply.body.error.type).to.equal('invalid_request_error');
      expect(reply.text).not.to.include('canary');
    }
    expect((await send(rig, path, { body: `\ufeff${body}` })).status).to.equal(200);
    expect(
      (await send(rig, path, { body: `{"stream":true,${body.slice(1, -1)},"stream":false}` })).body.object,
    ).to.equal('chat.completion');
  });

  it('takes a body of the limit and refuses one byte more, declared or chunked', async () => {
    const small = await openRig({ limits: { bodyBytes: 4096 } });
    const sized = (bytes: number) => body.padEnd(bytes, ' ');
    try {
      expect((await send(small, path, { body: sized(4095) })).status).to.equal(200);
      expect((await send(small, path, { body: sized(4096) })).status).to.equal(200);
      for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
        const reply = await send(small, path, { body: sized(4097), headers });
        expect(reply.status).to.equal(413);
        expect(reply.body.error.code).to.equal('request_too_large');
        expect(reply.headers.connection).to.equal('close');
      }
    } finally {
      await small.close();
    }
  });

  it('refuses a body of 100 MB without taking it in, while others are served', async function () {
    this.timeout(60_000);
    for (const framing of [`content-length: ${100 * 1024 * 1024}`, 'transfer-encoding: chunked']) {
      const { socket, received, closed } = await openSocket(rig.port);
      const before = process.memoryUsage().rss;
      socket.write(`POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n${framing}\r\n\r\n`);
      const megabyte = Buffer.alloc(1024 * 1024, 0x20);
      const chunk = Buffer.concat([Buffer.from('100000\r\n'), megabyte, Buffer.from('\r\n')]);
      const part = framing.startsWith('t') ? chunk : megabyte;
      let sent = 0;
      while (sent < 100 && !socket.destroyed) {
        sent++;
        if (!socket.write(part)) await Promise.race([once(socket, 'drain').catch(() => undefined), closed]);
      }
      await closed;
      expect(received()).to.match(/^HTTP\/1\.1 413 /);
      expect(received()).to.include('request_too_large');
      expect(sent, 'megabytes taken').to.be.below(60);
      expect(process.memoryUsage().rss - before).to.be.below(100 * 1024 * 1024);
      expect((await post(rig, path, chatBody())).status).to.equal(200);
    }
  });

  it('refuses both Content-Length and Transfer-Encoding, and everything else that is no HTTP, and closes', async () => {
    const smuggle = `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /live HTTP/1.1\r\nhost: localhost\r\n\r\n`;
    const cases = [
      smuggle,
      'GARBAGE\r\n\r\n',
      'FOO / HTTP/1.1\r\nhost: localhost\r\n\r\n',
      'GET / HTTP/9.9\r\nhost: localhost\r\n\r\n',
      'GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n',
      `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: -1\r\n\r\n`,
      `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n`,
    ];
    for (const text of cases) {
      const received = await raw(text);
      expect(received, text).to.match(/^HTTP\/1\.1 400 /);
      expect(received.match(/HTTP\/1\.1 /g), text).to.have.length(1);
      expect(JSON.parse(received.split('\r\n\r\n')[1] ?? '').error.type).to.equal('invalid_request_error');
    }
  });

  it('says 431 to headers over the limit', async () => {
    const received = await raw(`GET /live HTTP/1.1\r\nhost: localhost\r\nx: ${'a'.repeat(20_000)}\r\n\r\n`);
    expect(received).to.match(/^HTTP\/1\.1 431 /);
    expect(received).to.include('headers_too_large');
  });

  it('says 408 to an upload that stalls', async function () {
    this.timeout(10_000);
    const quick = await openRig({ limits: { uploadMs: 300, headersMs: 200 } });
    try {
      for (const text of [
        'GET / HT',
        `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{`,
      ]) {
        const { socket, received, closed } = await openSocket(quick.port);
        socket.write(text);
        await closed;
        expect(received()).to.match(/^HTTP\/1\.1 408 /);
        expect(received()).to.include('request_timeout');
      }
    } finally {
      await quick.close();
    }
  });

  it('does not hang on Upgrade, and answers an unknown expectation', async () => {
    const upgrade = await send(rig, path, { body, headers: { connection: 'Upgrade', upgrade: 'websocket' } });
    expect(upgrade.status).to.equal(200);
    const expectation = await send(rig, path, { body, headers: { expect: 'miracles' } });
    expect(expectation.status).to.equal(417);
    expect(expectation.body.error.code).to.equal('expectation_failed');
  });

  it('refuses names that only DNS rebinding brings here, and pages of other origins', async () => {
    const hosts: [string, number][] = [
      ['localhost', 200],
      ['LOCALHOST:8000', 200],
      ['127.0.0.1:1', 200],
      ['[::1]:8000', 200],
      ['192.168.1.5', 200],
      ['llm.example:80', 200],
      ['a.localhost', 200],
      ['evil.example', 403],
      ['127.0.0.1.evil.example', 403],
      ['localhost.evil', 403],
    ];
    for (const [host, status] of hosts)
      expect((await send(rig, '/live', { headers: { host } })).status, host).to.equal(status);
    expect(await raw('GET /live HTTP/1.1\r\nconnection: close\r\n\r\n')).to.match(
      /^HTTP\/1\.1 403 [\s\S]*host_not_allowed/,
    );
    const origins: [string, number][] = [
      ['http://localhost:8000', 200],
      ['https://app.example', 200],
      ['https://evil.example', 403],
      ['null', 403],
      ['http://localhost:81', 403],
    ];
    for (const [origin, status] of origins) {
      const reply = await send(rig, path, { body, headers: { host: 'localhost:8000', origin } });
      expect(reply.status, origin).to.equal(status);
      expect(reply.headers['access-control-allow-origin']).to.equal(
        origin === 'https://app.example' ? origin : undefined,
      );
    }
    const preflight = { origin: 'https://app.example', 'access-control-request-method': 'POST' };
    expect((await send(rig, path, { method: 'OPTIONS', headers: preflight })).status).to.equal(204);
  });

  it('fails to listen on a port in use with the system’s own code', async () => {
    const second = openRig({ listen: { host: '127.0.0.1', port: rig.port } });
    const error: NodeJS.ErrnoException = await second.then(
      () => new Error('it listens'),
      (reason) => reason,
    );
    expect(error.code).to.equal('EADDRINUSE');
  });

  it('survives clients that reset at any point of a request', async () => {
    const head = `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
    for (let cut = 1; cut < head.length; cut += 7) {
      const socket = createConnection(rig.port, '127.0.0.1');
      socket.on('error', () => undefined);
      await once(socket, 'connect');
      socket.write(head.slice(0, cut));
      socket.resetAndDestroy();
    }
    expect((await post(rig, path, chatBody())).status).to.equal(200);
    expect(rig.log.filter(({ level }) => Number(level) >= 50)).to.deep.equal([]);
  });
});
