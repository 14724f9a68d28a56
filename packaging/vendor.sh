#!/usr/bin/env bash
# Fetches what others have written for the management pages into a directory of the sources: uPlot,
# which draws charts (MIT). Called by `make vendor`; npm asks the registry that it is set up for.
#
#   packaging/vendor.sh DIRECTORY
set -euo pipefail

place=$(realpath "${1:?usage: vendor.sh DIRECTORY}")
version=1.6.32
digest=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent "uplot@$version" >/dev/null
echo "$digest  uplot-$version.tgz" | sha256sum --check --quiet
tar -xzf "uplot-$version.tgz"
cp package/dist/uPlot.iife.min.js "$place/uplot.js"
cp package/dist/uPlot.min.css "$place/uplot.css"
cp package/LICENSE "$place/uplot-license.txt"

# What the pages have is compared with these by the tests, too.
cd "$place"
sha256sum --check --quiet <<'FILES'
19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f  uplot.js
df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04  uplot.css
8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd  uplot-license.txt
FILES
