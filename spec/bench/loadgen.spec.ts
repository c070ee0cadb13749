import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { dynamoOf } from '../../bench/gateway.js';
import { generateLoad, parseLoad } from '../../bench/loadgen.js';

describe('the load generator', function () {
  // It is compiled at first use.
  this.timeout(120_000);

  /** Streams as many events as `max_tokens` says, up to three at a time. */
  const event = 'data: {"x":1}\n\n';
  const seen: string[] = [];
  const server = createServer((request, response) => {
    let body = '';
    request.setEncoding('utf8').on('data', (chunk) => {
      body += chunk;
    });
    request.on('end', () => {
      seen.push(body);
      const {
        max_tokens: tokens,
        fails,
        hangsUp,
      } = JSON.parse(body) as { max_tokens: number; fails?: boolean; hangsUp?: boolean };
      if (fails === true) {
        response.writeHead(503).end('no');
        return;
      }
      if (hangsUp === true) response.on('finish', () => request.socket.destroySoon());
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (let sent = 0; sent < tokens; sent += 3) response.write(event.repeat(Math.min(3, tokens - sent)));
      response.end('data: [DONE]\n\n');
    });
  });
  before(async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  after(() => server.close());
  const port = () => (server.address() as AddressInfo).port;

  it('sends every request once with a number of its own, and counts every event', async () => {
    seen.length = 0;
    const body = '{"max_tokens":20,"n":@@N@@}';
    const result = await generateLoad({ port: port(), clients: 4, requests: 25, body, pids: [process.pid] });
    expect(result.requests).to.equal(25);
    expect(result.events).to.equal(25 * 20);
    expect(new Set(seen).size).to.equal(25);
    expect(result.cpu(process.pid)).to.be.at.least(0);
  });

  it('sends a request again when the server has closed the kept connection without having said so', async () => {
    seen.length = 0;
    const body = '{"max_tokens":2,"hangsUp":true,"n":@@N@@}';
    const result = await generateLoad({ port: port(), clients: 2, requests: 8, body });
    expect(result.requests).to.equal(8);
    expect(new Set(seen).size).to.equal(8);
  });

  it('refuses the figures of a run in which a request failed', async () => {
    const failing = generateLoad({ port: port(), clients: 1, requests: 2, body: '{"max_tokens":1,"fails":true}' });
    const error = await failing.then(
      () => undefined,
      (reason: Error) => reason,
    );
    expect(error?.message).to.match(/2 of 2 requests failed/);
  });

  it('takes no line that is not its own', () => {
    expect(() => parseLoad('{"hello":1}')).to.throw(TypeError);
    expect(() => parseLoad('stalled')).to.throw(SyntaxError);
  });
});

describe('the peer of the gateway benchmark', () => {
  it('is named by address and processes, the frontend first', () => {
    expect(dynamoOf({})).to.equal(undefined);
    expect(dynamoOf({ dynamo: 'http://127.0.0.1:8300', 'dynamo-pids': '11,22' })).to.deep.equal({
      port: 8300,
      pids: [11, 22],
    });
  });

  it('is refused without a port or without processes', () => {
    expect(() => dynamoOf({ dynamo: 'http://127.0.0.1', 'dynamo-pids': '1' })).to.throw(/port/);
    expect(() => dynamoOf({ dynamo: 'http://127.0.0.1:1', 'dynamo-pids': 'x' })).to.throw(/process ids/);
    expect(() => dynamoOf({ dynamo: 'http://127.0.0.1:1' })).to.throw(/process ids/);
  });
});
