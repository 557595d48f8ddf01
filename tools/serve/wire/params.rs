//! How a reply is to be made: the fields that all interfaces share, in the spellings of OpenAI, llama-server and vLLM. Pure.

use std::collections::BTreeMap;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::SamplingAdvice;
use flint_rt::sample::{OptionsError, SamplerOptions};
use flint_rt::text::chat::Thinking;
use flint_rt::text::{Specials, Tokenizer};
use serde_json::Value;

use super::error::{ApiError, Kind};
use super::fields::Fields;
use crate::engine::backend::Facts;
use crate::limits::{BIASES_MAX, STOP_BYTES_MAX, STOPS_MAX, TOP_LOGPROBS_MAX};

/// What holds where a request says nothing.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// How tokens are chosen where neither [`Self::asked`] nor the model's file says so; its seed counts only where
    /// [`Self::has_seed`].
    pub sampling: SamplerOptions,
    /// What whoever started the server asked for; it goes before the model's file.
    pub asked: SamplingAdvice,
    /// Whether every reply is drawn with that seed; else each has its own.
    pub has_seed: bool,
    /// Tokens of a reply at most; to the end of the context if `None`.
    pub tokens_max: Option<u32>,
    /// Whether a chat reply begins within a thought.
    pub thinking: Thinking,
}

impl Defaults {
    /// The same for a model whose file gives this advice.
    pub(crate) fn for_model(self, advice: &SamplingAdvice) -> Self {
        Self { sampling: self.asked.over(advice.over(self.sampling)), ..self }
    }
}

/// What a request says of its reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Params {
    pub(crate) sampling: SamplerOptions,
    /// Tokens of the reply at most, if the request or a default says so.
    pub(crate) tokens_max: Option<u32>,
    /// Tokens before the reply may end.
    pub(crate) tokens_min: u32,
    /// Whether it never ends by itself.
    pub(crate) ignores_stops: bool,
    pub(crate) stops: Vec<String>,
    /// Whether a prefix that a slot holds may be used again.
    pub(crate) reuses_prefix: bool,
    pub(crate) wants_progress: bool,
    pub(crate) wants_ids: bool,
    pub(crate) wants_timings: bool,
    /// For each token so many alternatives with their log-probabilities; 0 for the token's own alone.
    pub(crate) top_logprobs: Option<u32>,
}

/// Reads them; log-probabilities are each interface's own.
pub(crate) fn read(fields: &Fields<'_>, defaults: &Defaults, facts: &Facts) -> Result<Params, ApiError> {
    if let Some(n) = fields.count("n", 1)?
        && n != 1
    {
        return Err(fields.refuse("n", format_args!("is {n}, but one choice is made at a time: send 1")));
    }
    let tokens_max = first(&["max_completion_tokens", "max_tokens", "n_predict"], |name| {
        // llama-server's -1 is "as many as fit".
        match fields.whole(name)? {
            Some(-1) if name != "max_completion_tokens" => Ok(Some(u32::MAX)),
            _ => fields.count(name, 0),
        }
    })?;
    Ok(Params {
        sampling: sampling(fields, defaults, facts)?,
        tokens_max: tokens_max.or(defaults.tokens_max),
        tokens_min: fields.count("min_tokens", 0)?.unwrap_or(0),
        ignores_stops: fields.flag("ignore_eos")?.unwrap_or(false),
        stops: stops(fields, "stop")?,
        reuses_prefix: fields.flag("cache_prompt")?.unwrap_or(true),
        wants_progress: fields.flag("return_progress")?.unwrap_or(false),
        wants_ids: fields.flag("return_token_ids")?.or(fields.flag("return_tokens")?).unwrap_or(false),
        wants_timings: fields.flag("timings_per_token")?.unwrap_or(false),
        top_logprobs: None,
    })
}

/// The first of several spellings that is there.
fn first<T>(
    names: &[&str],
    read: impl Fn(&str) -> Result<Option<T>, ApiError>,
) -> Result<Option<T>, ApiError> {
    for name in names {
        if let Some(value) = read(name)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn sampling(fields: &Fields<'_>, defaults: &Defaults, facts: &Facts) -> Result<SamplerOptions, ApiError> {
    let mut options = defaults.sampling.clone();
    let set = |name: &str, target: &mut f32| -> Result<(), ApiError> {
        if let Some(number) = fields.float(name)? {
            *target = number;
        }
        Ok(())
    };
    set("temperature", &mut options.temperature)?;
    set("top_p", &mut options.top_p)?;
    set("min_p", &mut options.min_p)?;
    set("presence_penalty", &mut options.presence_penalty)?;
    set("frequency_penalty", &mut options.frequency_penalty)?;
    set("repetition_penalty", &mut options.repetition_penalty)?;
    set("repeat_penalty", &mut options.repetition_penalty)?;
    if let Some(top_k) = fields.whole("top_k")? {
        // Zero and below mean all tokens, in every server that has the field.
        options.top_k = u32::try_from(top_k.max(0)).unwrap_or(u32::MAX);
    }
    if let Some(last_n) = fields.whole("repeat_last_n")? {
        options.penalty_last_n = u32::try_from(last_n).unwrap_or(u32::MAX);
    }
    options.logit_bias = biases(fields, &facts.tokenizer)?;
    options.seed = match seed(fields)? {
        Some(seed) => seed,
        None if defaults.has_seed => defaults.sampling.seed,
        None => crate::random::number(),
    };
    options.check(facts.vocabulary).map_err(|error| {
        let param = match &error {
            OptionsError::OutOfRange { option, .. } => option,
            _ => "logit_bias",
        };
        ApiError { param: Some(param.to_owned()), ..ApiError::new(Kind::Invalid, error.to_string()) }
    })?;
    Ok(options)
}

/// A seed; -1 asks for another one each time.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    match fields.get("seed").and_then(Value::as_u64) {
        Some(seed) => Ok(Some(seed)),
        None => match fields.whole("seed")? {
            None | Some(-1) => Ok(None),
            Some(seed) => Ok(Some(seed.cast_unsigned())),
        },
    }
}

/// OpenAI's object from id to bias, or llama-server's list of pairs, in which `false` forbids. In place of an id may stand a text,
/// which means each of its tokens; of several biases of a token the last counts.
fn biases(fields: &Fields<'_>, tokenizer: &Tokenizer) -> Result<Vec<(TokenId, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let wanted = "wanted {\"id or text\": bias} or [[id or text, bias], ...]";
    let refuse = || fields.refuse(NAME, wanted);
    let too_many = || fields.refuse(NAME, format_args!("has more than {BIASES_MAX} entries or tokens"));
    let bias = |value: &Value| match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        #[expect(clippy::cast_possible_truncation, reason = "a bias needs no more digits")]
        other => other.as_f64().map(|bias| bias as f32).ok_or_else(refuse),
    };
    let id = |id: Option<u64>| id.and_then(|id| TokenId::try_from(id).ok()).ok_or_else(refuse);
    // A number in quotes is an id.
    let ids = |text: &str| match text.parse() {
        Ok(number) => Ok(vec![id(Some(number))?]),
        Err(_) if text.len() > STOP_BYTES_MAX => Err(refuse()),
        Err(_) => Ok(tokenizer.encode(text, Specials::Plain)),
    };
    let mut biases = BTreeMap::new();
    let mut add = |ids: Vec<TokenId>, bias: f32| biases.extend(ids.into_iter().map(|id| (id, bias)));
    match fields.get(NAME) {
        None => {}
        Some(Value::Object(map)) if map.len() <= BIASES_MAX => {
            for (token, value) in map {
                add(ids(token)?, bias(value)?);
            }
        }
        Some(Value::Array(list)) if list.len() <= BIASES_MAX => {
            for pair in list {
                match pair.as_array().map(Vec::as_slice) {
                    Some([Value::String(token), value]) => add(ids(token)?, bias(value)?),
                    Some([token, value]) => add(vec![id(token.as_u64())?], bias(value)?),
                    _ => return Err(refuse()),
                }
            }
        }
        Some(Value::Object(_) | Value::Array(_)) => return Err(too_many()),
        Some(_) => return Err(refuse()),
    }
    match biases.len() > BIASES_MAX {
        true => Err(too_many()),
        false => Ok(biases.into_iter().collect()),
    }
}

/// A text, or a list of texts. Empty ones would end every reply at once, and are left out.
pub(crate) fn stops(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let mut stops = match fields.get(name) {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .map(|stop| stop.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| fields.refuse(name, "wanted a text or a list of texts"))?,
        Some(_) => return Err(fields.refuse(name, "wanted a text or a list of texts")),
    };
    stops.retain(|stop| !stop.is_empty());
    if stops.len() > STOPS_MAX {
        let count = stops.len();
        return Err(fields.refuse(name, format_args!("has {count} texts, at most {STOPS_MAX} are taken")));
    }
    if let Some(long) = stops.iter().find(|stop| stop.len() > STOP_BYTES_MAX) {
        let bytes = long.len();
        return Err(fields
            .refuse(name, format_args!("has a text of {bytes} bytes, at most {STOP_BYTES_MAX} are taken")));
    }
    Ok(stops)
}

/// A number of alternatives to each token.
pub(crate) fn top_logprobs(fields: &Fields<'_>, name: &str) -> Result<Option<u32>, ApiError> {
    match fields.count(name, 0)? {
        Some(count) if count > TOP_LOGPROBS_MAX => {
            Err(fields.refuse(name, format_args!("is {count}, wanted 0 to {TOP_LOGPROBS_MAX}")))
        }
        count => Ok(count),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::engine::backend::Backend;
    use crate::stub::{Script, Stub, nano_tokenizer};
    use crate::wire::fields::parse;

    /// Greedy, so that a test says itself what it draws with.
    pub(crate) fn defaults() -> Defaults {
        Defaults {
            sampling: SamplerOptions::recommended(7),
            asked: SamplingAdvice::default(),
            has_seed: true,
            tokens_max: None,
            thinking: Thinking::Auto,
        }
    }

    fn params(body: &str) -> Result<Params, ApiError> {
        let facts = Facts { vocabulary: 100, ..Stub::new(Script::default()).facts() };
        read(&Fields::new(&parse(body.as_bytes()).unwrap()), &defaults(), &facts)
    }

    #[test]
    fn a_request_that_says_nothing_has_the_defaults() {
        let got = params(r#"{"temperature":null,"stop":null,"seed":-1,"logit_bias":null}"#).unwrap();
        assert_eq!(got, params("{}").unwrap());
        assert_eq!(got.sampling, SamplerOptions::recommended(7));
        assert_eq!((got.tokens_max, got.tokens_min, got.reuses_prefix), (None, 0, true));
    }

    #[test]
    fn the_command_line_goes_before_the_file_and_that_before_the_maker() {
        let asked = SamplingAdvice { top_k: Some(5), ..SamplingAdvice::default() };
        let file = SamplingAdvice { top_k: Some(40), temperature: Some(0.6), ..SamplingAdvice::default() };
        let got = Defaults { asked, ..defaults() }.for_model(&file).sampling;
        assert_eq!((got.top_k, got.temperature, got.top_p), (5, 0.6, SamplerOptions::recommended(0).top_p));
    }

    #[test]
    fn every_spelling_is_read() {
        let got = params(
            r#"{"temperature":0,"top_k":-1,"top_p":0.5,"min_p":0.1,"repeat_penalty":1.5,"presence_penalty":0.5,
                "frequency_penalty":-0.5,"seed":18446744073709551615,"max_tokens":9,"max_completion_tokens":5,
                "stop":["a","","b"],"ignore_eos":true,"min_tokens":2,"repeat_last_n":-1,"cache_prompt":false}"#,
        )
        .unwrap();
        let sampling = &got.sampling;
        assert_eq!(
            (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
            (0.0, 0, 0.5, 0.1)
        );
        assert_eq!((sampling.repetition_penalty, sampling.presence_penalty), (1.5, 0.5));
        assert_eq!((sampling.frequency_penalty, sampling.penalty_last_n), (-0.5, u32::MAX));
        assert_eq!((sampling.seed, got.tokens_max, got.tokens_min), (u64::MAX, Some(5), 2));
        assert_eq!(
            (got.stops, got.ignores_stops, got.reuses_prefix),
            (vec!["a".into(), "b".into()], true, false)
        );
        assert_eq!(params(r#"{"max_tokens":-1}"#).unwrap().tokens_max, Some(u32::MAX));
        let biases = [r#"{"logit_bias":{"3":-1.5}}"#, r#"{"logit_bias":[[3,-1.5]]}"#];
        for body in biases {
            assert_eq!(params(body).unwrap().sampling.logit_bias, [(3, -1.5)]);
        }
        let forbidden = params(r#"{"logit_bias":[[3,false]]}"#).unwrap().sampling.logit_bias;
        assert_eq!(forbidden, [(3, f32::NEG_INFINITY)]);
    }

    #[test]
    fn a_bias_may_name_a_text() {
        let facts = Stub::new(Script::default()).facts();
        let read = |body: &str| read(&Fields::new(&parse(body.as_bytes()).unwrap()), &defaults(), &facts);
        let ids = nano_tokenizer().encode(" the book", Specials::Plain);
        assert!(ids.len() > 1);
        let mut wanted: Vec<(TokenId, f32)> = ids.iter().map(|id| (*id, -100.0)).collect();
        wanted.sort_by_key(|(id, _)| *id);
        for body in [r#"{"logit_bias":{" the book":-100}}"#, r#"{"logit_bias":[[" the book",-100]]}"#] {
            assert_eq!(read(body).unwrap().sampling.logit_bias, wanted);
        }
        // The last of a token counts.
        let body = format!(r#"{{"logit_bias":[[" the book",-100],["{}",5]]}}"#, ids[0]);
        assert!(read(&body).unwrap().sampling.logit_bias.contains(&(ids[0], 5.0)));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (body, param) in [
            (r#"{"temperature":-1}"#, "temperature"),
            (r#"{"temperature":"0.5"}"#, "temperature"),
            (r#"{"top_p":1.5}"#, "top_p"),
            (r#"{"min_p":-0.1}"#, "min_p"),
            (r#"{"repeat_penalty":0}"#, "repetition_penalty"),
            (r#"{"presence_penalty":3}"#, "presence_penalty"),
            (r#"{"n":2}"#, "n"),
            (r#"{"n":0}"#, "n"),
            (r#"{"max_tokens":-2}"#, "max_tokens"),
            (r#"{"max_tokens":1.5}"#, "max_tokens"),
            (r#"{"seed":1.5}"#, "seed"),
            (r#"{"stop":5}"#, "stop"),
            (r#"{"stop":[5]}"#, "stop"),
            (r#"{"logit_bias":{"x":"1"}}"#, "logit_bias"),
            (r#"{"logit_bias":[[[],1]]}"#, "logit_bias"),
            (r#"{"logit_bias":{"100":1}}"#, "logit_bias"),
            (r#"{"logit_bias":5}"#, "logit_bias"),
            (r#"{"ignore_eos":1}"#, "ignore_eos"),
        ] {
            let error = params(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
            assert!(error.message.contains(param), "{body}: {}", error.message);
        }
        let stops = format!(r#"{{"stop":["{}"]}}"#, "x".repeat(STOP_BYTES_MAX + 1));
        assert!(params(&stops).unwrap_err().message.contains("257 bytes"));
        let stops = format!(r#"{{"stop":[{}"x"]}}"#, r#""x","#.repeat(STOPS_MAX));
        assert!(params(&stops).unwrap_err().message.contains("17 texts"));
    }
}
