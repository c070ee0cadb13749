/** Streams read back: records, filters, files of them, and the timeline of a request. */
export { gather, requestIdIn } from './evidence.js';
export { writeRecords } from './file.js';
export { complaintAbout, passes, sinceOf, streamsOf } from './filter.js';
export { perfettoOf } from './perfetto.js';
export { redact, toJson } from './privacy.js';
export { readRecord, type TapeRecord } from './record.js';
export { importFile, openFile, openImported, openNode, readable, type Source } from './source.js';
export { traceOf } from './timeline.js';
