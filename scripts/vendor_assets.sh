#!/bin/sh
# Fetch the libraries that pages use, through npm, and write down what they are: web/static/vendor/.
# A line is NPM-PACKAGE VERSION FILE-IN-PACKAGE NAME-HERE LICENCE-FILE; to renew one, change its version.
# JSROOT is bundled of the parts that scripts/jsroot_entry.mjs names, so that a page loads a third of it, and
# Vega with Vega-Lite of those that scripts/vega_entry.mjs names.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
jsroot=7.11.2 esbuild=0.25.12
# The charts are written for Vega-Lite 6.4, and vl-convert draws it with Vega 6.
vega=6.4.0 vegalite=6.4.3 embed=7.3.0 interpreter=2.3.2
cd "$(dirname "$0")/../web/static/vendor"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

{
    echo "# Libraries of others"
    echo
    echo "Files of npm packages, served with the pages; made by \`scripts/vendor_assets.sh\`. All are unchanged but"
    echo "jsroot.min.mjs and vega.min.mjs, which esbuild bundles from the modules that \`scripts/*_entry.mjs\` name."
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
LIST
    npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps --omit=peer \
        --prefix "$work" "jsroot@$jsroot" "esbuild@$esbuild" "vega@$vega" "vega-lite@$vegalite" \
        "vega-embed@$embed" "vega-interpreter@$interpreter" >&2
    # Packages keep their modules to themselves unless they are named as paths.
    sed "s|\"jsroot/|\"./node_modules/jsroot/|" "$here/jsroot_entry.mjs" > "$work/entry.mjs"
    # What decompresses zstd and LZMA is half of it, and exports are written with zlib.
    "$work/node_modules/.bin/esbuild" "$work/entry.mjs" --bundle --minify --format=esm --log-level=error \
        --legal-comments=none --banner:js="// JSROOT $jsroot, https://root.cern/js/, MIT licence" \
        --external:./base/zstd.mjs --external:./base/lzma.mjs --external:@* --external:three \
        --external:three/addons --external:fs --external:zlib --external:xhr2 --external:tmp \
        --external:jsdom --external:canvas --external:gl --external:mathjax > jsroot.min.mjs
    cp "$work/node_modules/jsroot/LICENSE" jsroot.min.mjs.LICENSE
    chmod 644 jsroot.min.mjs jsroot.min.mjs.LICENSE
    echo "| jsroot.min.mjs | jsroot | $jsroot, esbuild $esbuild | [MIT](jsroot.min.mjs.LICENSE) | $(sha256sum jsroot.min.mjs | cut -d' ' -f1) |"
    cp "$here/vega_entry.mjs" "$work/vega.mjs"
    "$work/node_modules/.bin/esbuild" "$work/vega.mjs" --bundle --minify --format=esm --log-level=error \
        --legal-comments=none --banner:js="// Vega $vega, Vega-Lite $vegalite, https://vega.github.io, BSD-3-Clause licence" \
        > vega.min.mjs
    {
        for one in vega vega-lite vega-embed vega-interpreter d3-array d3-geo d3-geo-projection topojson-client tslib semver \
            fast-json-patch; do
            echo "$one $(node -p "require('$work/node_modules/$one/package.json').version")"
            cat "$(ls "$work/node_modules/$one"/LICENSE* | head -1)"
            echo
        done
    } > vega.min.mjs.LICENSE
    chmod 644 vega.min.mjs vega.min.mjs.LICENSE
    echo "| vega.min.mjs | vega | $vega, vega-lite $vegalite, vega-embed $embed, vega-interpreter $interpreter | [BSD-3-Clause](vega.min.mjs.LICENSE) | $(sha256sum vega.min.mjs | cut -d' ' -f1) |"
} > "$work/VENDORED.md"
mv "$work/VENDORED.md" VENDORED.md
