/** Streams read back: records, filters, files of them, and the timeline of a request. */
export { type Evidence, gather, requestIdIn } from './evidence.js';
export { type RecordWriter, writeRecords } from './file.js';
export { complaintAbout, components, passes, type RecordFilter, recordTypes, sinceOf, streamsOf } from './filter.js';
export { type PerfettoTrace, perfettoOf, type TraceEvent } from './perfetto.js';
export type { Phase } from './phases.js';
export { redact, toJson } from './privacy.js';
export { type Read, readRecord, type StreamFacts, type TapeRecord } from './record.js';
export { importFile, type LiveSource, openFile, openImported, openNode, readable, type Source } from './source.js';
export { type Happening, type Trace, traceOf } from './timeline.js';
