// Stands in for the Python Debugger extension, which is in no registry that a test can reach. It does with `attach` and
// `connect` what that does: VS Code talks straight to the TCP server. With DAP_TRACE set, every message goes there.
const fs = require("fs");
const vscode = require("vscode");

function describe({ configuration }) {
  const { host = "127.0.0.1", port } = configuration.connect;
  return new vscode.DebugAdapterServer(port, host);
}

function trace(session) {
  const note = (way, message) =>
    fs.appendFileSync(process.env.DAP_TRACE, JSON.stringify({ session: session.name, way, message }) + "\n");
  return {
    onWillReceiveMessage: (message) => note("to", message),
    onDidSendMessage: (message) => note("from", message),
  };
}

exports.activate = ({ subscriptions }) => {
  subscriptions.push(
    vscode.debug.registerDebugAdapterDescriptorFactory("debugpy", { createDebugAdapterDescriptor: describe }),
  );
  if (process.env.DAP_TRACE)
    subscriptions.push(vscode.debug.registerDebugAdapterTrackerFactory("*", { createDebugAdapterTracker: trace }));
};
