#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/formats/token_files.h"
#include "data/text/characters.h"
#include "data/text/hash.h"
#include "data/verify/checks.h"
#include "tokenizer/tokenizer.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

// Files written by us under a scratch folder must equal the stored ones byte for byte.
void check_same_file(const std::string& ours, const std::string& theirs, Tally& tally) {
  tally.expect(fs::exists(ours) && base::read_file(ours) == base::read_file(theirs), [&] { return theirs; });
}

void check_tokenizer(const std::vector<Json>& rows, const std::string& name, const Json& info, Checks& checks) {
  const char* data = std::getenv("SINTER_DATA");
  const std::string path = info["tokenizer"].get<std::string>();
  if (!data) return;
  const std::string local = std::string(data) + path.substr(path.find('/'));
  if (!fs::exists(local)) return;
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(local);
  Tally tally(fmt::format("token ids of {}", name));
  const std::vector<int32_t> end = tokenizer.encode(info["eos"].get<std::string>(), {true, false});
  for (const Json& row : rows) {
    std::vector<int32_t> ids = tokenizer.encode(row["text"].get<std::string>(), {true, false});
    ids.insert(ids.end(), end.begin(), end.end());
    tally.expect(Json(ids) == row[name + "_tokens"], [&] { return row["id"].dump(); });
  }
  checks.push_back(tally.check());
}

}  // namespace

Checks verify_shards(const std::string& folder) {
  Checks checks;
  const std::vector<Json> rows = read_rows(folder, "documents.jsonl");
  const Json expected = read_object(folder, "expected.json");
  const std::string scratch = (fs::temp_directory_path() / fmt::format("sinter_verify_{}", ::getpid())).string();
  for (const auto& [name, info] : expected.items()) {
    Tally read(fmt::format("shards of {} read", name)), written(fmt::format("shards of {} written", name)),
        digests(fmt::format("digests of {}", name));
    for (const auto& [file, what] : info["files"].items())
      digests.expect(sha256_hex(base::read_file(folder + "/" + file)) == what["sha256"].get<std::string>(),
                     [&] { return file; });
    const int token_bytes = info["token_bytes"];
    TokenDocuments want;
    want.token_bytes = token_bytes;
    for (const Json& row : rows) want.documents.push_back(row[name + "_tokens"].get<std::vector<int32_t>>());
    const std::string base = folder + "/" + name;
    read.expect(read_datatrove(base + "/plain/00000_unshuffled.ds", token_bytes).documents == want.documents,
                [] { return "plain"; });
    read.expect(read_megatron(base + "/megatron/00000_tokens").documents == want.documents, [] { return "megatron"; });
    std::vector<std::vector<int32_t>> shuffled;
    for (const Json& i : info["permutation_of_doc_shuffled"]) shuffled.push_back(want.documents[i.get<size_t>()]);
    read.expect(read_datatrove(base + "/doc_shuffled/00000_00000_doc_shuffled.ds", token_bytes).documents == shuffled,
                [] { return "doc_shuffled"; });
    base::create_folders(scratch);
    write_datatrove(scratch + "/a.ds", want, "x");
    check_same_file(scratch + "/a.ds", base + "/plain/00000_unshuffled.ds", written);
    check_same_file(scratch + "/a.ds.index", base + "/plain/00000_unshuffled.ds.index", written);
    write_megatron(scratch + "/m", want);
    check_same_file(scratch + "/m.bin", base + "/megatron/00000_tokens.bin", written);
    check_same_file(scratch + "/m.idx", base + "/megatron/00000_tokens.idx", written);
    if (fs::exists(base + "/loss/00000_unshuffled.ds")) {
      const TokenDocuments loss = read_datatrove(base + "/loss/00000_unshuffled.ds", token_bytes);
      for (size_t i = 0; i < rows.size(); ++i) {
        std::string mask;
        for (uint8_t bit : loss.loss_masks[i]) mask.push_back(static_cast<char>('0' + bit));
        read.expect(rows[i][name + "_loss_mask"] == Json(mask), [&] { return fmt::format("mask {}", i); });
      }
      write_datatrove(scratch + "/l.ds", loss, "x");
      check_same_file(scratch + "/l.ds.loss", base + "/loss/00000_unshuffled.ds.loss", written);
    }
    fs::remove_all(scratch);
    checks.push_back(digests.check());
    checks.push_back(read.check());
    checks.push_back(written.check());
    check_tokenizer(rows, name, info, checks);
  }
  return checks;
}

}  // namespace sinter::data
