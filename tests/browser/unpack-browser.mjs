// Unpacks the Chromium without a window that tests steer, beside the package that brings it.
//
// It is for x86-64; elsewhere, or without the package, tests take the system's own Chromium.
import { createReadStream, createWriteStream, existsSync, mkdirSync, renameSync } from 'node:fs';
import { arch } from 'node:process';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { createBrotliDecompress } from 'node:zlib';

const packed = fileURLToPath(
  new URL('node_modules/@sparticuz/chromium/bin/chromium.br', import.meta.url),
);
const directory = fileURLToPath(new URL('node_modules/.chromium', import.meta.url));

if (arch === 'x64' && existsSync(packed)) {
  mkdirSync(directory, { recursive: true });
  const there = `${directory}/headless-shell`;
  await pipeline(
    createReadStream(packed), createBrotliDecompress(),
    createWriteStream(`${there}.new`, { mode: 0o755 }),
  );
  renameSync(`${there}.new`, there);
}
