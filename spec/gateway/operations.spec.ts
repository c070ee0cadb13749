import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { pino } from 'pino';
import { type GatewayStatus, gatewayErrors, startTracing } from '../../gateway/index.js';
import { Metrics } from '../../gateway/metrics.js';
import { chatBody, openRig, post, type Rig, send } from './scripted-frontend.js';

const path = '/v1/chat/completions';

describe('Operations', () => {
  let rig: Rig | undefined;
  afterEach(() => rig?.close());

  it('reports readiness and health from the facts behind it, with a reason and a status code', async () => {
    let status: GatewayStatus = { ready: false, reason: 'no worker', instances: [], samples: [] };
    rig = await openRig({ status: () => status });
    expect((await send(rig, '/ready')).status).to.equal(503);
    const sick = await send(rig, '/health');
    expect(sick.status).to.equal(503);
    expect(sick.body).to.deep.equal({ status: 'not_ready', reason: 'no worker', models: ['mock'], instances: [] });
    expect((await send(rig, '/live')).status).to.equal(200);
    const instances = [{ component: 'decode', instance: 'decode-0', draining: false }];
    status = { ready: true, reason: '', instances, samples: [] };
    expect((await send(rig, '/health')).body).to.deep.equal({ status: 'healthy', models: ['mock'], instances });
    expect((await send(rig, '/ready', { method: 'HEAD' })).status).to.equal(200);
  });

  it('counts requests by outcome, first tokens, tokens and refusals, and conserves them', async () => {
    rig = await openRig({
      status: () => ({
        ready: true,
        reason: '',
        instances: [],
        samples: [{ name: 'dynact_workers', help: 'Workers.', kind: 'gauge', labels: { component: 'a"b' }, value: 3 }],
      }),
    });
    await post(rig, path, chatBody());
    await post(rig, path, chatBody({ stream: true }));
    await post(rig, path, chatBody({ temperature: 9 }));
    await post(rig, path, 5);
    const text = (await send(rig, '/metrics')).text;
    const value = (line: string) =>
      Number(
        text
          .split('\n')
          .find((row) => row.startsWith(`${line} `))
          ?.split(' ')
          .at(-1),
      );
    expect(value('dynact_http_requests_total{api="chat",model="mock",outcome="complete",code=""}')).to.equal(2);
    expect(
      value('dynact_http_requests_total{api="chat",model="",outcome="refused",code="invalid_request_error"}'),
    ).to.equal(1);
    expect(value('dynact_http_refused_total{status="400",code="invalid_request_error"}')).to.equal(1);
    expect(value('dynact_time_to_first_token_seconds_count{api="chat",model="mock"}')).to.equal(2);
    expect(value('dynact_inter_token_seconds_count{api="chat",model="mock"}')).to.equal(2);
    expect(value('dynact_tokens_total{model="mock",kind="completion"}')).to.equal(4);
    expect(value('dynact_requests_in_flight')).to.equal(0);
    expect(value('process_resident_memory_bytes')).to.be.above(1e7);
    expect(value('dynact_event_loop_lag_max_seconds')).to.be.at.least(0);
    expect(value('dynact_workers{component="a\\"b"}')).to.equal(3);
    for (const row of text.trimEnd().split('\n')) {
      expect(row).to.match(/^(# (HELP|TYPE) \w+ .+|\w+(\{(\w+="([^"\\\n]|\\.)*",?)+\})? [-+.\deInfNa]+)$/);
    }
  });

  it('bounds the label sets of a metric: at the limit each counts, beyond it they share `other`', () => {
    const metrics = new Metrics();
    const family = metrics.counter('c', 'help');
    for (let code = 0; code < 300; code++) family.with({ code: String(code) }).add(1);
    family.with({ code: '5' }).add(1);
    const rows = metrics.text([]).trimEnd().split('\n').slice(2);
    expect(rows).to.have.length(201);
    expect(rows).to.include('c{code="199"} 1').and.include('c{code="other"} 100').and.include('c{code="5"} 2');
  });

  it('logs one line per request, without prompts, answers or keys', async () => {
    rig = await openRig();
    const secret = 'canary-5b1f';
    const body = chatBody({ messages: [{ role: 'user', content: secret }], user: secret });
    await post(rig, path, body, { authorization: `Bearer ${secret}` });
    await post(rig, path, { ...body, temperature: secret }, { authorization: `Bearer ${secret}` });
    await post(rig, path, secret, { authorization: `Bearer ${secret}` });
    expect(JSON.stringify(rig.log)).not.to.include(secret);
    expect(rig.log.map(({ msg, status, outcome }) => [msg, status, outcome])).to.deep.equal([
      ['request', 200, 'complete'],
      ['request', 400, 'refused'],
    ]);
    expect(rig.log[0]).to.include.keys(
      'label',
      'id',
      'model',
      'firstTextMs',
      'totalMs',
      'promptTokens',
      'completionTokens',
    );
  });

  it('sends a span per request to the collector, a child of the client’s, and hands its own id on', async function () {
    this.timeout(20_000);
    const bodies: string[] = [];
    const collector = createServer((request, response) => {
      let text = '';
      request.setEncoding('utf8').on('data', (part) => {
        text += part;
      });
      request.on('end', () => {
        bodies.push(`${request.url} ${text}`);
        response.end('{}');
      });
    });
    collector.listen(0, '127.0.0.1');
    await once(collector, 'listening');
    const { port } = collector.address() as AddressInfo;
    const tracing = await startTracing(`http://127.0.0.1:${port}/`, 'gateway-test', pino({ level: 'silent' }));
    const own = await openRig({ tracing });
    const traceId = '0af7651916cd43dd8448eb211c80319c';
    await post(own, path, chatBody(), { traceparent: `00-${traceId}-b7ad6b7169203331-01` });
    const handed = own.calls[0]?.trace ?? '';
    expect(handed).to.match(new RegExp(`^00-${traceId}-(?!b7ad6b7169203331)[0-9a-f]{16}-01$`));
    await own.close();
    collector.close();
    const sent = bodies.join('');
    expect(sent)
      .to.include('/v1/traces')
      .and.include(traceId)
      .and.include(handed.split('-')[2] as string);
    expect(sent).to.include('gateway-test').and.include('b7ad6b7169203331');
  });

  it('has one row per error, each with a meaning, a status of its class and OpenAI’s type', () => {
    for (const [name, row] of Object.entries(gatewayErrors)) {
      expect(name).to.match(/^GWY_[A-Z0-9_]+$/);
      expect(row.meaning, name).to.have.length.above(5);
      expect(row.status, name).to.be.within(400, 599);
      expect(row.type === 'server_error', name).to.equal(row.status >= 500);
      expect(row.retryable && row.status < 500, name).to.equal(false);
    }
  });
});
