// Prompts of tasks whose golden files hold them beside verdicts: HumanEval, MBPP, MATH, GSM8K with reasoning.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/golden/golden.h"
#include "eval/results/table.h"
#include "eval/tasks/prompt.h"
#include "tokenizer/chat_template.h"

namespace sinter::eval {
namespace {

using Json = nlohmann::ordered_json;
namespace jinja = tokenizer::jinja;

// The prompt of a shipped task for a document of these fields.
std::string prompt_of(const std::string& name, const Json& fields, int64_t num_few_shot, PromptOptions options = {}) {
  const Task& task = shipped_tasks().tasks.at(name);
  DocumentSet documents;
  documents.documents.push_back(jinja::from_json(fields));
  documents.lines.push_back(1);
  options.num_few_shot = num_few_shot;
  const DocumentSet pool = load_pool(task, num_few_shot, "");
  return PromptBuilder(task, documents, pool, options).next().contexts[0];
}

}  // namespace

const char* chatml_template() {
  return "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
         "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
}

VerifyCheck verify_gsm8k_cot_prompt(const Json& file) {
  CaseCounter prompts("gsm8k_cot prompt");
  const std::string wanted = file.at("gsm8k_cot_8_shot_context");
  const size_t begin = wanted.rfind("Q: "), end = wanted.rfind("\nA:");
  SINTER_CHECK(begin != std::string::npos && end != std::string::npos && begin < end,
               "gsm8k_cot_8_shot_context has no last question");
  const Json fields{{"question", wanted.substr(begin + 3, end - begin - 3)}, {"answer", "#### 0"}};
  prompts.expect(prompt_of("gsm8k_cot", fields, 8) == wanted, "gsm8k_cot with 8 examples");
  return prompts.check();
}

VerifyCheck verify_humaneval_prompts(const Json& file) {
  CaseCounter prompts("humaneval prompts");
  std::map<std::string, Json> documents;
  for (const Json& sample : file.at("samples")) {
    const Json fields{{"prompt", sample.at("prompt")}, {"test", ""}, {"entry_point", ""}};
    documents[sample.at("task_id")] = fields;
    prompts.expect(prompt_of("humaneval", fields, 0) == sample["prompt"].get<std::string>(), sample["task_id"]);
  }
  PromptOptions chatml;
  auto chat = std::make_shared<tokenizer::ChatTemplate>(chatml_template(), "chatml");
  chatml.chat = [chat](const std::vector<ChatMessage>& messages, bool continues) {
    return render_chat(*chat, messages, continues);
  };
  for (const Json& sample : file.value("instruct", Json::array())) {
    const std::string id = sample.at("task_id");
    const auto found = documents.find(id);
    if (found == documents.end()) continue;
    prompts.expect(prompt_of("humaneval_instruct", found->second, 0) == sample.at("plain").get<std::string>(),
                   id + " instruct");
    prompts.expect(prompt_of("humaneval_instruct", found->second, 0, chatml) == sample.at("chatml").get<std::string>(),
                   id + " instruct by ChatML");
  }
  return prompts.check();
}

VerifyCheck verify_mbpp_prompts(const std::string& folder, const Json& file) {
  CaseCounter prompts("mbpp prompts");
  const Task& task = shipped_tasks().tasks.at("mbpp");
  const std::string path = data_set_file(folder, task.data.at("test"));
  if (path.empty()) {
    return {"mbpp prompts", "not run", 0, 0, "the questions are in mbpp.jsonl, which is not beside the folder"};
  }
  const DocumentSet documents = read_documents(path);
  for (const Json& sample : file.at("samples")) {
    const std::string id = sample.at("task_id").dump();
    for (const TaskDocument& document : documents.documents) {
      if (value_text(*find_field(document, "task_id")) != id) continue;
      DocumentSet one;
      one.documents.push_back(document);
      one.lines.push_back(1);
      const DocumentSet pool = load_pool(task, 3, "");
      PromptOptions options;
      options.num_few_shot = 3;
      const Question question = PromptBuilder(task, one, pool, options).next();
      const std::string& own = question.contexts[0];
      prompts.expect(sample.contains("context")
                         ? own == sample["context"].get<std::string>()
                         : own.ends_with("\n\n" + sample.at("context_after_examples").get<std::string>()),
                     "task " + id);
      prompts.expect(question.target == sample.at("target").get<std::string>(), "task " + id + ": another target");
    }
  }
  return prompts.check();
}

VerifyCheck verify_math_prompts(const Json& file) {
  CaseCounter prompts("math prompts");
  for (const Json& sample : file.at("contexts")) {
    const Json fields{{"problem", sample.at("problem")}, {"solution", "$\\boxed{0}$"}, {"level", ""}, {"type", ""}};
    const std::string minerva = prompt_of("minerva_math", fields, 4);
    const std::string place = sample["problem"].get<std::string>().substr(0, 60);
    prompts.expect(sample.at("minerva_4shot").is_string()
                       ? minerva == sample["minerva_4shot"].get<std::string>()
                       : minerva.ends_with("\n\n" + sample.at("minerva_tail").get<std::string>()),
                   "minerva_math: " + place);
    prompts.expect(prompt_of("hendrycks_math", fields, 0) == sample.at("hendrycks_0shot").get<std::string>(),
                   "hendrycks_math: " + place);
  }
  return prompts.check();
}

std::string data_set_file(const std::string& folder, const std::string& name) {
  const char* named = std::getenv("SINTER_EVAL_DATA");
  for (const std::string& base : {folder + "/../../data/eval", std::string(named ? named : "")}) {
    if (!base.empty() && std::filesystem::exists(base + "/" + name)) return base + "/" + name;
  }
  return "";
}

}  // namespace sinter::eval
