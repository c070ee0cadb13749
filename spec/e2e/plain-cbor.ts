/** CBOR as RFC 8949 has it, as far as plain data goes: what somebody would write who has nothing of ours. */
export function plainCbor(bytes: Uint8Array): unknown {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const value = item();
  if (at !== bytes.length) throw new Error(`${bytes.length - at} bytes are left`);
  return value;

  function argument(info: number): number {
    const start = at;
    if (info < 24) return info;
    const size = 1 << (info - 24);
    if (info > 27) throw new Error(`argument ${info} at byte ${at}: plain data has definite lengths`);
    at += size;
    if (size === 1) return view.getUint8(start);
    if (size === 2) return view.getUint16(start);
    if (size === 4) return view.getUint32(start);
    return Number(view.getBigUint64(start));
  }
  function item(): unknown {
    const first = view.getUint8(at);
    at += 1;
    const info = first & 0x1f;
    switch (first >> 5) {
      case 0:
        return argument(info);
      case 1:
        return -1 - argument(info);
      case 2:
      case 3: {
        const length = argument(info);
        const body = bytes.subarray(at, at + length);
        if (body.length < length) throw new Error('cut short');
        at += length;
        return first >> 5 === 2 ? body : new TextDecoder('utf-8', { fatal: true }).decode(body);
      }
      case 4:
        return Array.from({ length: argument(info) }, item);
      case 5: {
        const map: Record<string, unknown> = {};
        for (let left = argument(info); left > 0; left--) {
          const key = item();
          map[String(key)] = item();
        }
        return map;
      }
      case 6: {
        const tag = argument(info);
        const tagged = item();
        // RFC 8746: 32-bit unsigned integers, little endian.
        if (tag === 70 && tagged instanceof Uint8Array)
          return Array.from({ length: tagged.length / 4 }, (_, index) =>
            new DataView(tagged.buffer, tagged.byteOffset).getUint32(4 * index, true),
          );
        throw new Error(`tag ${tag}: not plain`);
      }
      default:
        return simple(info);
    }
  }
  function simple(info: number): unknown {
    const start = at;
    if (info === 20 || info === 21) return info === 21;
    if (info === 22) return null;
    if (info === 23) return undefined;
    if (info === 26) {
      at += 4;
      return view.getFloat32(start);
    }
    if (info === 27) {
      at += 8;
      return view.getFloat64(start);
    }
    throw new Error(`simple value ${info}`);
  }
}
