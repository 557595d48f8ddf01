//! OpenAI's older completions: a text, or token ids, to go on with. Pure.

use flint_rt::base::ids::TokenId;
use flint_rt::text::chat::Marker;
use flint_rt::text::{Specials, Tokenizer};
use serde_json::{Map, Value, json};

use super::chat::fingerprint;
use super::error::{ApiError, Kind};
use super::fields::{Fields, kind};
use super::model::{Model, wanted};
use super::params::{self, Params};
use super::render::{Answer, Prepared, Whole, event, finish_reason, progress, sum, timings, usage};
use crate::engine::job::{Generation, Numbers, Progress, Summary};
use crate::engine::reply::{Piece, Shape, TokenInfo};
use crate::limits::PROMPTS_MAX;
use crate::random;

/// A request's body to what is to be done.
pub(crate) fn prepare(model: &Model, body: &Map<String, Value>, created: u64) -> Result<Prepared, ApiError> {
    let fields = Fields::new(body);
    model.check_name(&fields)?;
    for name in ["suffix", "echo"] {
        if fields.get(name).is_some_and(|value| *value != Value::Bool(false) && *value != "") {
            return Err(
                fields.refuse(name, "is not supported: this model goes on with a text, and only that")
            );
        }
    }
    if fields.count("best_of", 1)?.is_some_and(|best| best != 1) {
        return Err(fields.refuse("best_of", "is not supported: send 1"));
    }
    let mut params = params::read(&fields, &model.defaults, &model.facts)?;
    // OpenAI's default of 16 surprises everybody but its own clients, which do not rely on it; others' is the whole context.
    params.top_logprobs = match fields.get("logprobs") {
        Some(Value::Bool(true)) => Some(0),
        Some(Value::Bool(false)) => None,
        _ => params::top_logprobs(&fields, "logprobs")?,
    };
    let prompts = prompts(&fields, model)?;
    let streams = fields.flag("stream")?.unwrap_or(false);
    let includes_usage = match fields.object("stream_options")? {
        Some(options) => Fields::within(options, "stream_options.").flag("include_usage")?.unwrap_or(false),
        None => false,
    };
    let answer = CompletionAnswer {
        id: random::id("cmpl-"),
        created,
        model: model.name.clone(),
        tokenizer: model.facts.tokenizer.clone(),
        includes_usage,
        tells_progress: params.wants_progress,
        tells_ids: params.wants_ids,
        tells_logprobs: params.top_logprobs.is_some(),
        told: vec![0; prompts.len()],
        numbers: Vec::new(),
    };
    let generations = generations(model, &fields, prompts, &params)?;
    Ok(Prepared { generations, answer: Box::new(answer), streams, calls: None })
}

/// One continuation a prompt, in the form that the request wants.
pub(crate) fn generations(
    model: &Model,
    fields: &Fields<'_>,
    prompts: Vec<Vec<TokenId>>,
    params: &Params,
) -> Result<Vec<Generation>, ApiError> {
    let wanted = wanted(fields, &[])?;
    let generation = |ids| {
        let generation = model.generation(ids, Shape::Text, params, None)?;
        model.constrained(generation, wanted.as_ref())
    };
    prompts.into_iter().map(generation).collect()
}

/// Text, ids, or a list of either or both.
pub(crate) fn prompts(fields: &Fields<'_>, model: &Model) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let name = "prompt";
    let value = fields.get(name).ok_or_else(|| fields.refuse(name, "is missing"))?;
    let prompts: Vec<&Value> = match value {
        Value::Array(list) if list.iter().any(|item| !item.is_number()) && !is_mixed(list) => {
            list.iter().collect()
        }
        other => vec![other],
    };
    if prompts.len() > PROMPTS_MAX {
        let count = prompts.len();
        return Err(fields.refuse(name, format_args!("has {count} texts, at most {PROMPTS_MAX} are taken")));
    }
    prompts.into_iter().map(|value| prompt(fields, name, value, model)).collect()
}

/// Whether a list is one prompt of texts and ids: llama-server's way to write markers.
fn is_mixed(list: &[Value]) -> bool {
    list.iter().any(Value::is_number) && list.iter().all(|item| item.is_number() || item.is_string())
}

fn prompt(fields: &Fields<'_>, name: &str, value: &Value, model: &Model) -> Result<Vec<TokenId>, ApiError> {
    let tokenizer = &model.facts.tokenizer;
    // Who writes a raw prompt decides what it is: markers in it are meant.
    let encode = |text: &str| tokenizer.encode(text, Specials::Parse);
    match value {
        Value::String(text) => {
            let begin = Marker::BeginOfText.id(tokenizer);
            let begin = begin.map_err(|error| ApiError::new(Kind::Server, error.to_string()))?;
            let mut ids = encode(text);
            // A document begins so, unless its writer said how it begins.
            let is_begun = ids.first().is_some_and(|first| {
                tokenizer.vocabulary().kind(*first).is_some_and(|kind| kind.is_special())
            });
            if !is_begun {
                ids.insert(0, begin);
            }
            Ok(ids)
        }
        Value::Array(parts) => {
            let mut ids = Vec::new();
            for part in parts {
                match (part, part.as_u64().and_then(|id| TokenId::try_from(id).ok())) {
                    (_, Some(id)) => ids.push(id),
                    (Value::String(text), None) => ids.append(&mut encode(text)),
                    (other, None) => {
                        return Err(fields
                            .refuse(name, format_args!("holds {}, wanted text or token ids", kind(other))));
                    }
                }
            }
            tokenizer
                .check_ids(&ids)
                .map_err(|error| fields.refuse(name, format_args!("does not fit the model: {error}")))?;
            Ok(ids)
        }
        // llama-server's way to send a text with pictures.
        Value::Object(parts) => {
            let parts = Fields::within(parts, "prompt.");
            if parts.list("multimodal_data")?.is_some_and(|pictures| !pictures.is_empty()) {
                return Err(parts.refuse("multimodal_data", "is not supported: this model reads text"));
            }
            let text =
                parts.text("prompt_string")?.ok_or_else(|| parts.refuse("prompt_string", "is missing"))?;
            prompt(fields, name, &text.into(), model)
        }
        other => Err(fields
            .refuse(name, format_args!("is {}, wanted text, token ids or a list of these", kind(other)))),
    }
}

struct CompletionAnswer {
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
    includes_usage: bool,
    tells_progress: bool,
    tells_ids: bool,
    tells_logprobs: bool,
    /// Characters told so far, by prompt: where the next token's text begins.
    told: Vec<usize>,
    /// Of the replies that are complete.
    numbers: Vec<Numbers>,
}

impl CompletionAnswer {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, text: &str, finish: Option<&str>) -> Value {
        json!({ "index": index, "text": text, "logprobs": null, "finish_reason": finish })
    }

    /// The older form: lists side by side.
    fn logprobs(&self, tokens: &[TokenInfo], offset: usize) -> Value {
        let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        let mut at = offset;
        for token in tokens {
            let text = self.tokenizer.decode(&[token.id]);
            let Some((logprob, best)) = &token.logprobs else { continue };
            let top: Map<String, Value> =
                best.iter().map(|(id, logprob)| (self.tokenizer.decode(&[*id]), (*logprob).into())).collect();
            offsets.push(at);
            at += text.chars().count();
            texts.push(text);
            logprobs.push(*logprob);
            tops.push(Value::Object(top));
        }
        json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
    }
}

impl Answer for CompletionAnswer {
    // The first piece is the first thing to say; until then a comment keeps the connection.
    fn begin(&mut self, out: &mut String) {
        out.push_str(self.ping());
    }

    fn progress(&mut self, now: &Progress, out: &mut String) {
        if self.tells_progress {
            let mut chunk = self.object(json!([]));
            chunk["prompt_progress"] = progress(now);
            event(out, None, &chunk);
        }
    }

    fn piece(&mut self, index: usize, piece: &Piece, _numbers: &Numbers, out: &mut String) {
        let mut choice = self.choice(index, &piece.text, None);
        if self.tells_logprobs {
            choice["logprobs"] = self.logprobs(&piece.tokens, self.told[index]);
        }
        if self.tells_ids {
            choice["token_ids"] = piece.tokens.iter().map(|token| token.id).collect();
        }
        self.told[index] += piece.text.chars().count();
        event(out, None, &self.object(json!([choice])));
    }

    fn done(&mut self, index: usize, summary: &Summary, is_last: bool, out: &mut String) {
        self.numbers.push(summary.numbers);
        let choice = self.choice(index, "", Some(finish_reason(&summary.end, false)));
        let mut chunk = self.object(json!([choice]));
        let numbers = sum(self.numbers.iter().copied());
        if is_last && !self.includes_usage {
            chunk["timings"] = timings(&numbers);
        }
        event(out, None, &chunk);
        if is_last {
            if self.includes_usage {
                let mut chunk = self.object(json!([]));
                chunk["usage"] = usage(&numbers);
                chunk["timings"] = timings(&numbers);
                event(out, None, &chunk);
            }
            out.push_str("data: [DONE]\n\n");
        }
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        event(out, None, &error.openai());
    }

    fn whole(&mut self, replies: &[Whole]) -> Value {
        let choices = replies.iter().enumerate().map(|(index, reply)| {
            let mut choice =
                self.choice(index, &reply.content, Some(finish_reason(&reply.summary.end, false)));
            if self.tells_logprobs {
                choice["logprobs"] = self.logprobs(&reply.content_tokens, 0);
            }
            if self.tells_ids {
                choice["token_ids"] = reply.ids.as_slice().into();
            }
            choice
        });
        let mut answer = self.object(choices.collect());
        let numbers = sum(replies.iter().map(|reply| reply.summary.numbers));
        answer["usage"] = usage(&numbers);
        answer["timings"] = timings(&numbers);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::job::End;
    use crate::engine::reply::Part;
    use crate::wire::fields::parse;
    use crate::wire::model::tests::model;
    use crate::wire::render::tests::{objects, piece, summary};

    fn prepared(body: &str) -> Result<Prepared, ApiError> {
        prepare(&model(), &parse(body.as_bytes()).unwrap(), 77)
    }

    fn ids(body: &str) -> Vec<Vec<TokenId>> {
        prepared(body).unwrap().generations.into_iter().map(|generation| generation.ids).collect()
    }

    #[test]
    fn a_prompt_is_text_or_ids_or_a_list() {
        let tokenizer = model().facts.tokenizer;
        let begin = Marker::BeginOfText.id(&tokenizer).unwrap();
        let plain = [vec![begin], tokenizer.encode("def f", Specials::Plain)].concat();
        assert_eq!(ids(r#"{"prompt":"def f"}"#), std::slice::from_ref(&plain));
        assert_eq!(ids(r#"{"prompt":["def f","def f"]}"#), [plain.clone(), plain.clone()]);
        assert_eq!(ids(r#"{"prompt":[5,6]}"#), [vec![5, 6]]);
        assert_eq!(ids(r#"{"prompt":[[5],[6,7]]}"#), [vec![5], vec![6, 7]]);
        assert_eq!(ids(r#"{"prompt":[[5],"def f"]}"#), [vec![5], plain.clone()]);
        assert_eq!(
            ids(r#"{"prompt":[5,"def f"]}"#),
            [[vec![5], tokenizer.encode("def f", Specials::Plain)].concat()]
        );
        let user = tokenizer.special_id("<|user|>").unwrap();
        assert_eq!(ids(r#"{"prompt":"<|user|>x"}"#)[0][0], user);
        assert_eq!(ids(r#"{"prompt":""}"#), [vec![begin]]);
        let body = r#"{"prompt":[{"prompt_string":"a b"},"a b"]}"#;
        assert_eq!(ids(body)[0], ids(body)[1]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, wanted) in [
            ("{}", "prompt is missing"),
            (r#"{"prompt":5}"#, "prompt is a number"),
            (r#"{"prompt":[{}]}"#, "prompt_string is missing"),
            (
                r#"{"prompt":{"prompt_string":"a","multimodal_data":["x"]}}"#,
                "multimodal_data is not supported",
            ),
            (r#"{"prompt":[[true]]}"#, "prompt holds a boolean"),
            (r#"{"prompt":[999999]}"#, "token id 999999 is outside"),
            (r#"{"prompt":[-1]}"#, "prompt holds a number"),
            (r#"{"prompt":"x","suffix":"y"}"#, "suffix is not supported"),
            (r#"{"prompt":"x","echo":true}"#, "echo is not supported"),
            (r#"{"prompt":"x","best_of":2}"#, "best_of is not supported"),
            (r#"{"prompt":"x","n":2}"#, "one choice is made"),
            (r#"{"prompt":[]}"#, "no token"),
        ] {
            let error = prepared(body).err().unwrap();
            assert!(error.message.contains(wanted), "{body}: {}", error.message);
        }
    }

    #[test]
    fn several_prompts_end_one_by_one() {
        let mut answer =
            prepared(r#"{"prompt":["a","b"],"stream":true,"stream_options":{"include_usage":true}}"#)
                .unwrap()
                .answer;
        let mut out = String::new();
        answer.begin(&mut out);
        for index in [0, 1] {
            answer.piece(index, &piece(Part::Content, "x"), &Numbers::default(), &mut out);
            answer.done(index, &summary(End::Length), index == 1, &mut out);
        }
        let chunks = objects(&out);
        assert_eq!(chunks.len(), 5);
        assert_eq!(
            (&chunks[0]["choices"][0]["text"], &chunks[2]["choices"][0]["index"]),
            (&"x".into(), &1.into())
        );
        assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
        assert_eq!(chunks[4]["usage"]["total_tokens"], 26);
        assert_eq!(out.matches("[DONE]").count(), 1);
    }

    #[test]
    fn log_probabilities_lie_side_by_side() {
        let mut answer = prepared(r#"{"prompt":"a","logprobs":1}"#).unwrap().answer;
        let token = |id| TokenInfo { id, logprobs: Some((-0.5, vec![(id, -0.5)])) };
        let piece =
            Piece { part: Part::Content, text: "xy".to_owned(), tokens: vec![token(300), token(301)] };
        let got = answer.whole(&[Whole::new(vec![piece], summary(End::Stop), None)]);
        let logprobs = &got["choices"][0]["logprobs"];
        assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5]));
        let first = logprobs["tokens"][0].as_str().unwrap();
        assert_eq!(logprobs["text_offset"], json!([0, first.chars().count()]));
        assert_eq!(logprobs["top_logprobs"][0][first], -0.5);
    }
}
