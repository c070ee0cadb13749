/** A command line that makes no sense although commander can read it. */
export class UsageError extends Error {}
