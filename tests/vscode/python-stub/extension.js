// Stands in for the Python extension, which is in no registry that a test can reach: the part of its API that tells the
// interpreter of a folder. The one that a folder's file `.interpreter` names is selected there, else none.
const fs = require("fs");
const path = require("path");
const vscode = require("vscode");

function selected(scope) {
  const folder = scope && vscode.workspace.getWorkspaceFolder(scope);
  const file = folder && path.join(folder.uri.fsPath, ".interpreter");
  return file && fs.existsSync(file) ? fs.readFileSync(file, "utf8").trim() : undefined;
}

exports.activate = () => ({
  environments: {
    getActiveEnvironmentPath: (scope) => ({ id: selected(scope), path: selected(scope) }),
    resolveEnvironment: async ({ path }) => path && { executable: { uri: vscode.Uri.file(path) } },
  },
});
