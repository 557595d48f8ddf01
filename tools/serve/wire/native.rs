//! llama-server's own completion: a raw text to go on with, and everything told about it. Pure.

use flint_rt::base::ids::TokenId;
use flint_rt::text::Tokenizer;
use serde_json::{Map, Value, json};

use super::completions::{generations, prompts};
use super::error::ApiError;
use super::fields::Fields;
use super::model::Model;
use super::params::{self, Params};
use super::render::{Answer, Prepared, Whole, event, logprobs, progress, progress_timings, timings};
use crate::engine::job::{End, Numbers, Progress, Summary};
use crate::engine::reply::{Piece, TokenInfo};

/// A request's body to what is to be done.
pub(crate) fn prepare(model: &Model, body: &Map<String, Value>, _created: u64) -> Result<Prepared, ApiError> {
    let fields = Fields::new(body);
    let mut params = params::read(&fields, &model.defaults, &model.facts)?;
    params.top_logprobs = match params::top_logprobs(&fields, "n_probs")? {
        Some(0) => None,
        count => count,
    };
    let prompts = prompts(&fields, model)?;
    let streams = fields.flag("stream")?.unwrap_or(false);
    let answer = NativeAnswer {
        model: model.name.clone(),
        tokenizer: model.facts.tokenizer.clone(),
        settings: settings(&params),
        prompts: prompts.iter().map(|ids| model.facts.tokenizer.decode(ids)).collect(),
        is_list: prompts.len() > 1,
        tells_ids: params.wants_ids,
        tells_logprobs: params.top_logprobs.is_some(),
        tells_progress: params.wants_progress,
        tells_timings: params.wants_timings,
        has_newline: vec![false; prompts.len()],
    };
    let generations = generations(model, &fields, prompts, &params)?;
    Ok(Prepared { generations, answer: Box::new(answer), streams, calls: None })
}

/// How the reply is made, as the request and the defaults have it.
fn settings(params: &Params) -> Value {
    let sampling = &params.sampling;
    json!({
        "n_predict": params.tokens_max.map_or(-1, i64::from),
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.penalty_last_n,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": sampling.logit_bias.iter().map(|(id, bias)| json!([id, bias])).collect::<Value>(),
        "ignore_eos": params.ignores_stops,
        "stop": params.stops,
        "n_probs": params.top_logprobs.unwrap_or(0),
    })
}

struct NativeAnswer {
    model: String,
    tokenizer: Tokenizer,
    settings: Value,
    /// As text.
    prompts: Vec<String>,
    is_list: bool,
    tells_ids: bool,
    tells_logprobs: bool,
    tells_progress: bool,
    tells_timings: bool,
    has_newline: Vec<bool>,
}

impl NativeAnswer {
    fn part(&self, index: usize, content: &str, ids: &[TokenId], tokens: &[TokenInfo]) -> Value {
        let mut value = json!({ "index": index, "content": content, "tokens": ids, "stop": false });
        if self.tells_logprobs {
            value["completion_probabilities"] = logprobs(&self.tokenizer, tokens)["content"].take();
        }
        value
    }

    /// Adds what is told at the end.
    fn end(&self, value: &mut Value, index: usize, summary: &Summary) {
        let numbers = &summary.numbers;
        let (kind, word) = match &summary.end {
            End::Stop => ("eos", ""),
            End::StopString(word) => ("word", word.as_str()),
            End::Length => ("limit", ""),
        };
        let more = json!({
            "stop": true,
            "stop_type": kind,
            "stopping_word": word,
            "model": self.model,
            "prompt": self.prompts[index],
            "generation_settings": self.settings,
            "tokens_predicted": numbers.reply_tokens,
            "tokens_evaluated": numbers.prompt_tokens,
            "tokens_cached": numbers.cached_tokens,
            "truncated": false,
            "has_new_line": self.has_newline[index],
            "timings": timings(numbers),
        });
        if let (Value::Object(value), Value::Object(more)) = (value, more) {
            value.extend(more);
        }
    }
}

impl Answer for NativeAnswer {
    fn begin(&mut self, out: &mut String) {
        out.push_str(self.ping());
    }

    fn progress(&mut self, now: &Progress, out: &mut String) {
        if self.tells_progress {
            let mut value = self.part(0, "", &[], &[]);
            value["prompt_progress"] = progress(now);
            if self.tells_timings {
                value["timings"] = progress_timings(now);
            }
            event(out, None, &value);
        }
    }

    fn piece(&mut self, index: usize, piece: &Piece, numbers: &Numbers, out: &mut String) {
        self.has_newline[index] |= piece.text.contains('\n');
        let ids: Vec<TokenId> = piece.tokens.iter().map(|token| token.id).collect();
        let mut value = self.part(index, &piece.text, &ids, &piece.tokens);
        if self.tells_timings {
            value["timings"] = timings(numbers);
        }
        event(out, None, &value);
    }

    fn done(&mut self, index: usize, summary: &Summary, _is_last: bool, out: &mut String) {
        let mut value = self.part(index, "", &[], &[]);
        self.end(&mut value, index, summary);
        event(out, None, &value);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        event(out, None, &error.openai());
    }

    fn whole(&mut self, replies: &[Whole]) -> Value {
        let mut values = Vec::with_capacity(replies.len());
        for (index, reply) in replies.iter().enumerate() {
            self.has_newline[index] = reply.content.contains('\n');
            let ids = if self.tells_ids { reply.ids.as_slice() } else { &[] };
            let mut value = self.part(index, &reply.content, ids, &reply.content_tokens);
            self.end(&mut value, index, &reply.summary);
            values.push(value);
        }
        match values.pop() {
            Some(only) if !self.is_list => only,
            last => {
                values.extend(last);
                values.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reply::Part;
    use crate::wire::fields::parse;
    use crate::wire::model::tests::model;
    use crate::wire::render::tests::{objects, piece, summary};

    fn prepared(body: &str) -> Prepared {
        prepare(&model(), &parse(body.as_bytes()).unwrap(), 0).unwrap()
    }

    #[test]
    fn everything_is_told_at_the_end() {
        let mut answer =
            prepared(r#"{"prompt":"def","n_predict":9,"return_tokens":true,"stop":["x"]}"#).answer;
        let whole =
            || Whole::new(vec![piece(Part::Content, "a\n")], summary(End::StopString("x".into())), None);
        let got = answer.whole(&[whole()]);
        assert_eq!(
            (&got["content"], &got["tokens"], &got["stop"]),
            (&"a\n".into(), &json!([5]), &true.into())
        );
        assert_eq!((&got["stop_type"], &got["stopping_word"]), (&"word".into(), &"x".into()));
        assert_eq!((&got["has_new_line"], &got["truncated"]), (&true.into(), &false.into()));
        assert_eq!(got["generation_settings"]["n_predict"], 9);
        assert_eq!((&got["tokens_evaluated"], &got["tokens_cached"]), (&10.into(), &4.into()));
        let mut answer = prepared(r#"{"prompt":["a","b"]}"#).answer;
        let got = answer.whole(&[whole(), whole()]);
        assert_eq!((&got[0]["tokens"], &got[1]["index"]), (&json!([]), &1.into()));
    }

    #[test]
    fn a_stream_ends_with_an_object_that_says_so() {
        let mut answer = prepared(r#"{"prompt":"a","stream":true}"#).answer;
        let mut out = String::new();
        answer.begin(&mut out);
        answer.piece(0, &piece(Part::Content, "x"), &Numbers::default(), &mut out);
        answer.done(0, &summary(End::Length), true, &mut out);
        let data = objects(&out);
        assert_eq!((&data[0]["stop"], &data[0]["tokens"]), (&false.into(), &json!([5])));
        assert_eq!(
            (&data[1]["stop"], &data[1]["stop_type"], &data[1]["content"]),
            (&true.into(), &"limit".into(), &"".into())
        );
        assert!(!out.contains("[DONE]"));
    }
}
