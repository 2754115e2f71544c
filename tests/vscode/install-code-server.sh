#!/bin/bash
# Install code-server, a VS Code that a browser can drive, from the npm registry: about a minute, 300 MB.
#   usage: install-code-server.sh DIRECTORY [VERSION]
#   needs: node 20, npm, and (Debian) build-essential python3 pkg-config ripgrep
# The package's own postinstall script downloads from other hosts; the steps here need the registry alone.
set -euo pipefail

version=${2:-4.100.3}
mkdir -p "$1"
destination=$(cd "$1" && pwd)
if [ -f "$destination/installed-$version" ]; then
    exit 0
fi
export npm_config_yes=true npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
# Headers for the native modules: those of the system's node, so that none need be downloaded.
headers=$(dirname "$(dirname "$(readlink -f "$(command -v node)")")")
if [ -d "$headers/include/node" ]; then
    export npm_config_nodedir=$headers
fi

rm -rf "$destination/package"
cd "$destination"
npm pack --silent "code-server@$version" > /dev/null
tar xzf "code-server-$version.tgz"
rm "code-server-$version.tgz"

server=$destination/package
editor=$server/lib/vscode
npm install --silent --prefix "$server" --no-save --omit=dev --ignore-scripts
npm install --silent --prefix "$editor" --no-save --omit=dev --ignore-scripts
npm rebuild --silent --prefix "$server" argon2
npm rebuild --silent --prefix "$editor" @vscode/spdlog native-watchdog node-pty
mkdir -p "$editor/node_modules/@vscode/ripgrep/bin"
ln -sfn "$(command -v rg)" "$editor/node_modules/@vscode/ripgrep/bin/rg"
ln -sfn node_modules "$editor/node_modules.asar"
ln -sfn code-linux.sh "$editor/bin/remote-cli/code-server"
ln -sfn browser-linux.sh "$editor/bin/helpers/browser.sh"
touch "$destination/installed-$version"
