//! The clients: what each is told, in its own format.

use serde_json::{Value, json};

use super::server::Server;
use super::{Client, Format, Piece, unit};

/// All of them, by name.
pub(super) const CLIENTS: [Client; 16] = [
    Client { name: "aider", about: "Aider, in a terminal", pieces: aider },
    Client { name: "anthropic-node", about: "Anthropic's library for JavaScript", pieces: anthropic_node },
    Client { name: "anthropic-python", about: "Anthropic's library for Python", pieces: anthropic_python },
    Client {
        name: "claude-code",
        about: "Claude Code, and agents that take its settings",
        pieces: claude_code,
    },
    Client { name: "cline", about: "Cline, in VS Code or a terminal", pieces: cline },
    Client { name: "codex", about: "Codex, in a terminal", pieces: codex },
    Client { name: "continue", about: "Continue, in an editor or a terminal", pieces: continue_dev },
    Client { name: "langchain", about: "LangChain for Python", pieces: langchain },
    Client { name: "litellm", about: "LiteLLM's proxy", pieces: litellm },
    Client { name: "openai-node", about: "OpenAI's library for JavaScript", pieces: openai_node },
    Client { name: "openai-python", about: "OpenAI's library for Python", pieces: openai_python },
    Client { name: "opencode", about: "opencode, in a terminal", pieces: opencode },
    Client { name: "pi", about: "pi, in a terminal", pieces: pi },
    Client { name: "qwen-code", about: "Qwen Code, in a terminal", pieces: qwen_code },
    Client { name: "systemd", about: "units that run the server itself", pieces: unit::pieces },
    Client { name: "zed", about: "Zed, an editor", pieces: zed },
];

/// What the server is called where a client wants a name for it.
const PROVIDER: &str = "flint-rt";

/// The longest silence that a client is to bear, in milliseconds: an hour, for a long prompt from a slow drive.
const SILENCE_MS: u32 = 3_600_000;

fn piece(place: &str, format: Format, text: String) -> Piece {
    Piece { place: place.to_owned(), format, text }
}

fn json_piece(place: &str, value: &Value) -> Piece {
    piece(place, Format::Json, format!("{value:#}"))
}

/// A text as it is written in JSON, TOML, YAML, Python and JavaScript alike: what JSON escapes, all of them take.
fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// A word of a shell's command.
fn word(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn aider(server: &Server) -> Vec<Piece> {
    let model = format!("openai/{}", server.model);
    let facts = json!({ &model: {
        "max_input_tokens": server.context_len,
        "max_output_tokens": server.reply_len(),
        "max_tokens": server.reply_len(),
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    } });
    let settings = format!(
        "model: {}\nopenai-api-base: {}\nopenai-api-key: {}\ntimeout: {}\n",
        text(&model),
        text(&server.v1()),
        text(&server.key),
        SILENCE_MS / 1000
    );
    vec![
        piece(".aider.conf.yml, in the project or your home folder", Format::Yaml, settings),
        json_piece(".aider.model.metadata.json, beside it", &facts),
    ]
}

fn claude_code(server: &Server) -> Vec<Piece> {
    let settings = json!({ "env": {
        "ANTHROPIC_BASE_URL": server.root(),
        "ANTHROPIC_AUTH_TOKEN": server.key,
        "ANTHROPIC_MODEL": server.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": server.model,
        "API_TIMEOUT_MS": SILENCE_MS.to_string(),
        // Both change from turn to turn, so that nothing before them could be used again.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": server.reply_len().to_string(),
    } });
    vec![json_piece("~/.claude/settings.json, or .claude/settings.json in the project", &settings)]
}

fn cline(server: &Server) -> Vec<Piece> {
    let command = format!(
        "# In VS Code: API Provider \"OpenAI Compatible\", with this base URL, key and model, and a context window of {}.\n\
         cline auth -p openai -b {} -m {} -k {}\n",
        server.context_len,
        word(&server.v1()),
        word(&server.model),
        word(&server.key)
    );
    vec![piece("in a terminal", Format::Shell, command)]
}

fn codex(server: &Server) -> Vec<Piece> {
    let (model, url) = (text(&server.model), text(&server.v1()));
    let settings = format!(
        "model = {model}\nmodel_provider = \"{PROVIDER}\"\nmodel_context_window = {}\n\n[model_providers.{PROVIDER}]\n\
         name = \"{PROVIDER}\"\nbase_url = {url}\nwire_api = \"responses\"\nenv_key = \"FLINT_RT_API_KEY\"\n\
         stream_idle_timeout_ms = {SILENCE_MS}\n",
        server.context_len
    );
    let key = format!("export FLINT_RT_API_KEY={}\n", word(&server.key));
    vec![
        piece("~/.codex/config.toml", Format::Toml, settings),
        piece("in the shell that starts it", Format::Shell, key),
    ]
}

fn continue_dev(server: &Server) -> Vec<Piece> {
    let settings = format!(
        "name: {PROVIDER}\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: {model}\n    provider: openai\n    model: {model}\n    \
         apiBase: {url}\n    apiKey: {key}\n    roles: [chat, edit, apply]\n    capabilities: [tool_use]\n    \
         defaultCompletionOptions:\n      contextLength: {context}\n      maxTokens: {reply}\n    requestOptions:\n      \
         timeout: {SILENCE_MS}\n",
        model = text(&server.model),
        url = text(&server.v1()),
        key = text(&server.key),
        context = server.context_len,
        reply = server.reply_len(),
    );
    vec![piece("~/.continue/config.yaml", Format::Yaml, settings)]
}

fn litellm(server: &Server) -> Vec<Piece> {
    let settings = format!(
        "model_list:\n  - model_name: {name}\n    litellm_params:\n      model: {model}\n      api_base: {url}\n      \
         api_key: {key}\n      timeout: {seconds}\n    model_info:\n      max_input_tokens: {context}\n      \
         max_output_tokens: {reply}\n",
        name = text(&server.model),
        model = text(&format!("openai/{}", server.model)),
        url = text(&server.v1()),
        key = text(&server.key),
        seconds = SILENCE_MS / 1000,
        context = server.context_len,
        reply = server.reply_len(),
    );
    vec![piece("config.yaml, for: litellm --config config.yaml", Format::Yaml, settings)]
}

fn opencode(server: &Server) -> Vec<Piece> {
    let settings = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": format!("{PROVIDER}/{}", server.model),
        "provider": { PROVIDER: {
            "npm": "@ai-sdk/openai-compatible",
            "name": PROVIDER,
            "options": { "baseURL": server.v1(), "apiKey": server.key, "timeout": SILENCE_MS },
            "models": { &server.model: {
                "name": server.model,
                "tool_call": true,
                "limit": { "context": server.context_len, "output": server.reply_len() },
            } },
        } },
    });
    vec![json_piece("opencode.json in the project, or ~/.config/opencode/opencode.json", &settings)]
}

fn pi(server: &Server) -> Vec<Piece> {
    let settings = json!({ "providers": { PROVIDER: {
        "baseUrl": server.v1(),
        "api": "openai-completions",
        "apiKey": server.key,
        "models": [{
            "id": server.model,
            "name": server.model,
            "input": ["text"],
            "contextWindow": server.context_len,
            "maxTokens": server.reply_len(),
            "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0 },
        }],
    } } });
    let command = format!("pi --provider {PROVIDER} --model {}\n", word(&server.model));
    vec![json_piece("~/.pi/agent/models.json", &settings), piece("in a terminal", Format::Shell, command)]
}

fn qwen_code(server: &Server) -> Vec<Piece> {
    let command = format!(
        "export OPENAI_BASE_URL={}\nexport OPENAI_API_KEY={}\nexport OPENAI_MODEL={}\nqwen --auth-type openai\n",
        word(&server.v1()),
        word(&server.key),
        word(&server.model)
    );
    vec![piece("in a terminal", Format::Shell, command)]
}

fn zed(server: &Server) -> Vec<Piece> {
    let settings = json!({ "language_models": { "openai_compatible": { PROVIDER: {
        "api_url": server.v1(),
        "available_models": [{
            "name": server.model,
            "display_name": server.model,
            "max_tokens": server.context_len,
            "max_output_tokens": server.reply_len(),
            "capabilities": {
                "tools": true, "images": false, "parallel_tool_calls": true, "prompt_cache_key": false,
            },
        }],
    } } } });
    let key = format!("export FLINT_RT_API_KEY={}\n", word(&server.key));
    vec![
        json_piece("Zed's settings.json", &settings),
        piece(
            "in the shell that starts it, or the key in its settings of language models",
            Format::Shell,
            key,
        ),
    ]
}

fn openai_python(server: &Server) -> Vec<Piece> {
    let code = format!(
        "from openai import OpenAI\n\nclient = OpenAI(base_url={}, api_key={}, timeout={})\nreply = client.chat.completions.create(\n    \
         model={},\n    messages=[{{\"role\": \"user\", \"content\": \"Say hello.\"}}],\n    stream=True,\n)\nfor chunk in reply:\n    \
         print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)\n",
        text(&server.v1()),
        text(&server.key),
        SILENCE_MS / 1000,
        text(&server.model)
    );
    vec![piece("a program, after: pip install openai", Format::Python, code)]
}

fn anthropic_python(server: &Server) -> Vec<Piece> {
    let code = format!(
        "from anthropic import Anthropic\n\nclient = Anthropic(base_url={}, api_key={}, timeout={})\nwith client.messages.stream(\n    \
         model={},\n    max_tokens={},\n    messages=[{{\"role\": \"user\", \"content\": \"Say hello.\"}}],\n) as stream:\n    \
         for text in stream.text_stream:\n        print(text, end=\"\", flush=True)\n",
        text(&server.root()),
        text(&server.key),
        SILENCE_MS / 1000,
        text(&server.model),
        server.reply_len()
    );
    vec![piece("a program, after: pip install anthropic", Format::Python, code)]
}

fn langchain(server: &Server) -> Vec<Piece> {
    let code = format!(
        "from langchain_openai import ChatOpenAI\n\nmodel = ChatOpenAI(\n    base_url={},\n    api_key={},\n    model={},\n    \
         timeout={},\n)\nprint(model.invoke(\"Say hello.\").content)\n",
        text(&server.v1()),
        text(&server.key),
        text(&server.model),
        SILENCE_MS / 1000
    );
    vec![piece("a program, after: pip install langchain-openai", Format::Python, code)]
}

fn openai_node(server: &Server) -> Vec<Piece> {
    let code = format!(
        "import OpenAI from \"openai\";\n\nconst client = new OpenAI({{ baseURL: {}, apiKey: {}, timeout: {SILENCE_MS} }});\n\
         const stream = await client.chat.completions.create({{\n  model: {},\n  messages: [{{ role: \"user\", content: \"Say hello.\" }}],\n  \
         stream: true,\n}});\nfor await (const chunk of stream) {{\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? \"\");\n}}\n",
        text(&server.v1()),
        text(&server.key),
        text(&server.model)
    );
    vec![piece("a program (hello.mjs), after: npm install openai", Format::JavaScript, code)]
}

fn anthropic_node(server: &Server) -> Vec<Piece> {
    let code = format!(
        "import Anthropic from \"@anthropic-ai/sdk\";\n\nconst client = new Anthropic({{ baseURL: {}, apiKey: {}, timeout: {SILENCE_MS} }});\n\
         const stream = client.messages.stream({{\n  model: {},\n  max_tokens: {},\n  messages: [{{ role: \"user\", content: \"Say hello.\" }}],\n}});\n\
         stream.on(\"text\", (text) => process.stdout.write(text));\nawait stream.finalMessage();\n",
        text(&server.root()),
        text(&server.key),
        text(&server.model),
        server.reply_len()
    );
    vec![piece("a program (hello.mjs), after: npm install @anthropic-ai/sdk", Format::JavaScript, code)]
}
