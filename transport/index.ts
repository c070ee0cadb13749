export { type Address, type AddressParts, address, type Component, isAddress, parts } from './address.js';
export type { Bus, BusState, KvEntry, Stop, Stored } from './bus.js';
export {
  type BlockRef,
  type Body,
  bodies,
  type Carrier,
  type Choice,
  carriers,
  type FinishCode,
  finishCodes,
  type Handoff,
  InstanceInfo,
  type Leg,
  type MessageType,
  type PoolRef,
  type ReplyTo,
  type Sampling,
  type Work,
} from './messages.js';
export type { Envelope, FrameItem, Head, Post, StepFrame } from './post.js';
