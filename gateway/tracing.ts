/**
 * OpenTelemetry: one span per generation request, continued from the client's `traceparent` and handed to the workers. Off
 * unless a collector is configured; then the SDK is loaded, which costs start-up time and memory.
 */
import { type Attributes, ROOT_CONTEXT, SpanKind, SpanStatusCode, TraceFlags, trace } from '@opentelemetry/api';
import type { Logger } from 'pino';

export interface RequestSpan {
  /** For the next hop. */
  readonly traceparent: string;
  /** Facts become attributes; `outcome` decides the status. */
  end(facts: Readonly<Record<string, string | number>>): void;
}

export interface Tracing {
  /** `parent`: a W3C traceparent. */
  start(name: string, parent: string | undefined): RequestSpan | undefined;
  /** Sends what is buffered. */
  stop(): Promise<void>;
}

/** Passes a client's trace on without spans of its own. */
export const noTracing: Tracing = { start: () => undefined, stop: () => Promise.resolve() };

const pattern = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/;

/** The header if it is a valid traceparent. */
export function validTraceparent(header: unknown): string | undefined {
  return typeof header === 'string' && pattern.test(header) ? header : undefined;
}

/** `otlpUrl`: base URL of an OTLP/HTTP collector, e.g. http://127.0.0.1:4318; '' = off. */
export async function startTracing(otlpUrl: string, service: string, log: Logger): Promise<Tracing> {
  if (otlpUrl === '') return noTracing;
  const [{ NodeSDK }, { OTLPTraceExporter }] = await Promise.all([
    import('@opentelemetry/sdk-node'),
    import('@opentelemetry/exporter-trace-otlp-http'),
  ]);
  const url = `${otlpUrl.replace(/\/$/, '')}/v1/traces`;
  const sdk = new NodeSDK({
    serviceName: service,
    traceExporter: new OTLPTraceExporter({ url }),
    instrumentations: [],
    metricReaders: [],
    logRecordProcessors: [],
  });
  sdk.start();
  const tracer = trace.getTracer('dynact');
  return {
    start(name, parent) {
      const match = parent === undefined ? null : pattern.exec(parent);
      const context =
        match === null
          ? ROOT_CONTEXT
          : trace.setSpanContext(ROOT_CONTEXT, {
              traceId: match[1] as string,
              spanId: match[2] as string,
              traceFlags: Number.parseInt(match[3] as string, 16) & TraceFlags.SAMPLED,
              isRemote: true,
            });
      const span = tracer.startSpan(name, { kind: SpanKind.SERVER }, context);
      const { traceId, spanId, traceFlags } = span.spanContext();
      return {
        traceparent: `00-${traceId}-${spanId}-${(traceFlags & 1).toString(16).padStart(2, '0')}`,
        end(facts) {
          const attributes: Attributes = {};
          for (const [key, value] of Object.entries(facts)) attributes[`dynact.${key}`] = value;
          span.setAttributes(attributes);
          if (facts.outcome === 'failed') span.setStatus({ code: SpanStatusCode.ERROR, message: String(facts.code) });
          span.end();
        },
      };
    },
    stop: () => sdk.shutdown().catch((error: unknown) => log.warn({ err: error }, 'traces were not delivered')),
  };
}
