export { type Address, type AddressParts, address, type Component, parts } from './address.js';
export type { Bus, BusState, KvEntry, Stop, Stored, TakenJob, Taker } from './bus.js';
export type { Clock } from './clock.js';
export { type DeadMail, deadLetter } from './dead-letters.js';
export {
  type Decoded,
  decodeCbor,
  decodeEnvelope,
  encodeCbor,
  type Fault,
} from './envelope.js';
export { isNetError, type NetCode, NetError, netErrors } from './errors.js';
export { type FrameHandlers, type FrameListener, listenFrames } from './frames.js';
export { type JobBoard, type JobTaker, openJobBoard, takeJobs } from './jobs.js';
export {
  decodeJournal,
  type Journal,
  type JournalEnd,
  type JournalEntry,
  type JournalRecord,
  type LastRecord,
  openJournal,
} from './journal.js';
export type { KvFault, KvOp, KvTier } from './kv-events.js';
export { followKv, type KvFollowed, type KvFollower, type KvRankState, type KvSink } from './kv-follower.js';
export { type KvPublisher, type KvPublisherOptions, openKvPublisher } from './kv-publisher.js';
export { type Mailbox, type MailboxOptions, openMailbox } from './mailbox.js';
export {
  createMemoryBroker,
  type Hop,
  type MemoryBroker,
  type MemoryBrokerOptions,
} from './memory/broker.js';
export {
  type BlockRef,
  type Body,
  bodies,
  type Carrier,
  type Choice,
  type FinishCode,
  finishCodes,
  type Handoff,
  InstanceInfo,
  type Leg,
  type LentPrefix,
  type MessageType,
  type PoolRef,
  type ReplyTo,
  type Sampling,
  type Work,
} from './messages.js';
export { connectNats, type NatsBus, type NatsOptions } from './nats/bus.js';
export { type Credentials, readCredentials } from './nats/credentials.js';
export { countDead, type EnsureOptions, ensureStreams, purgeMail } from './nats/ensure.js';
export type { Role } from './nats/permissions.js';
export { identify, isAlive, type ProcessIdentity } from './nats/process-identity.js';
export { holdNatsServer, type NatsServer, type NatsServerOptions, startNatsServer } from './nats/server.js';
export type { Outbox, OutboxOptions } from './outbox.js';
export {
  createPost,
  type Envelope,
  type FrameItem,
  type Head,
  type Post,
  type PostOffice,
  type StepFrame,
} from './post.js';
export { type QueryHandlers, serveQueries } from './queries.js';
export {
  type Announcement,
  announce,
  type InstanceEvent,
  type RegistryOptions,
  watchInstances,
} from './registry.js';
export { dropSetting, putSetting, watchSettings } from './settings.js';
export { decodeStep, encodeStep, isStepFrame } from './step-frame.js';
export type { StreamSettings, Tape } from './streams.js';
export { type FrameKind, matches, type StreamName, type Subjects, streamNames, subjects } from './subjects.js';
