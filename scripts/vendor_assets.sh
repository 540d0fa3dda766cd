#!/bin/sh
# Fetch the libraries that pages use, through npm, and write down what they are: web/static/vendor/.
# A line is NPM-PACKAGE VERSION FILE-IN-PACKAGE NAME-HERE LICENCE-FILE; to renew one, change its version.
set -eu
cd "$(dirname "$0")/../web/static/vendor"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

{
    echo "# Libraries of others"
    echo
    echo "Unchanged files of npm packages, served with the pages; made by \`scripts/vendor_assets.sh\`."
    echo
    echo "| file | package | version | licence | sha256 |"
    echo "|---|---|---|---|---|"
    while read -r package version file name licence; do
        archive=$(cd "$work" && npm pack --silent "$package@$version")
        tar -xzf "$work/$archive" -C "$work"
        cp "$work/package/$file" "$name"
        cp "$work/package/$licence" "$name.LICENSE"
        chmod 644 "$name" "$name.LICENSE"
        kind=$(node -p "require('$work/package/package.json').license")
        echo "| $name | $package | $version | [$kind]($name.LICENSE) | $(sha256sum "$name" | cut -d' ' -f1) |"
        rm -rf "$work/package"
    done <<'LIST'
htmx.org 2.0.11 dist/htmx.min.js htmx.min.js LICENSE
plotly.js-cartesian-dist-min 3.7.0 plotly-cartesian.min.js plotly-cartesian.min.js LICENSE
LIST
} > "$work/VENDORED.md"
mv "$work/VENDORED.md" VENDORED.md
