// A certified OpenID provider with PKCE, and two people who need no password.
const [folder, port, callback] = process.argv.slice(2);
const { default: Provider } = await import(`${folder}/lib/index.js`);
const groups = { alice: ["cms-io", "other"], eve: ["other"] };
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "treehammer",
      client_secret: "s".repeat(32),
      redirect_uris: [callback],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  claims: { openid: ["sub"], profile: ["name"], groups: ["groups"] },
  scopes: ["openid", "profile", "groups"],
  pkce: { required: () => true },
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: `${id} of the provider`, groups: groups[id] ?? [] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
