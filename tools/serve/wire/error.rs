//! What a client is told when something is wrong, in the form of each interface. Pure.

use serde_json::{Value, json};

/// What kind of fault it is; each has one status and one name in each interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request makes no sense.
    Invalid,
    /// The prompt does not fit.
    ContextExceeded,
    /// No key, or a wrong one.
    Authentication,
    /// A key would not help.
    Permission,
    /// There is no such path, model or slot.
    NotFound,
    /// The path is right, the method is not.
    Method,
    /// The request came too slowly.
    Timeout,
    /// The body is too long.
    TooLarge,
    /// The body is encoded in a way that is not taken.
    Encoding,
    /// Too many wait already.
    Busy,
    /// A fault of ours.
    Server,
    /// Not built in.
    NotSupported,
    /// Loading, stopping, or the device is lost.
    Unavailable,
}

impl Kind {
    /// The HTTP status.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Invalid | Self::ContextExceeded => 400,
            Self::Authentication => 401,
            Self::Permission => 403,
            Self::NotFound => 404,
            Self::Method => 405,
            Self::Timeout => 408,
            Self::TooLarge => 413,
            Self::Encoding => 415,
            Self::Busy => 429,
            Self::Server => 500,
            Self::NotSupported => 501,
            Self::Unavailable => 503,
        }
    }

    fn openai(self) -> &'static str {
        match self {
            Self::Invalid | Self::Method | Self::Timeout | Self::TooLarge | Self::Encoding => {
                "invalid_request_error"
            }
            Self::ContextExceeded => "exceed_context_size_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::Busy => "rate_limit_error",
            Self::Server => "server_error",
            Self::NotSupported => "not_supported_error",
            Self::Unavailable => "unavailable_error",
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::Busy => "rate_limit_error",
            Self::Server => "api_error",
            Self::Unavailable => "overloaded_error",
            _ => "invalid_request_error",
        }
    }
}

/// Something that a client is told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    /// What is wrong, what was wanted, and what to do. Never a path of this machine, nor what a prompt says.
    pub(crate) message: String,
    /// The field that it is about.
    pub(crate) param: Option<String>,
    /// Seconds after which to try again.
    pub(crate) retry_after_s: Option<u32>,
    /// Of a prompt that does not fit: its tokens, and those that would.
    pub(crate) tokens: Option<(u64, u32)>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after_s: None, tokens: None }
    }

    /// A field that makes no sense.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self { message: format!("{param} {message}"), param: Some(param), ..Self::new(Kind::Invalid, "") }
    }

    /// Something that may be better after a while.
    pub(crate) fn later(kind: Kind, message: impl Into<String>, retry_after_s: u32) -> Self {
        Self { retry_after_s: Some(retry_after_s), ..Self::new(kind, message) }
    }

    /// A prompt of `needed` tokens for a context of `context_len`. Its words are those by which clients recognise it.
    pub(crate) fn context_exceeded(needed: u64, context_len: u32, context_max: u32) -> Self {
        let remedy = match needed <= u64::from(context_max) {
            true => format!("shorten it, or start the server with --ctx-size {needed} or more"),
            false => "shorten it".to_owned(),
        };
        Self {
            tokens: Some((needed, context_len)),
            ..Self::new(
                Kind::ContextExceeded,
                format!(
                    "the request exceeds the available context size: this model's maximum context length is \
                     {context_len} tokens, but the prompt has {needed}; {remedy}"
                ),
            )
        }
    }

    /// As OpenAI's clients take it.
    pub(crate) fn openai(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind.openai(),
            "param": self.param,
            "code": self.kind.status(),
        });
        if let Some((needed, context_len)) = self.tokens {
            error["n_prompt_tokens"] = needed.into();
            error["n_ctx"] = context_len.into();
        }
        json!({ "error": error })
    }

    /// As Anthropic's clients take it.
    pub(crate) fn anthropic(&self, request_id: &str) -> Value {
        json!({
            "type": "error",
            "error": { "type": self.kind.anthropic(), "message": self.message },
            "request_id": request_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_is_recognised_by_its_words_and_numbers() {
        let error = ApiError::context_exceeded(5000, 4096, 131_072);
        let body = error.openai();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("exceeds the available context size"), "{message}");
        assert!(message.contains("this model's maximum context length is 4096 tokens"), "{message}");
        assert!(message.contains("--ctx-size 5000"), "{message}");
        assert_eq!(body["error"]["type"], "exceed_context_size_error");
        assert_eq!(
            (&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]),
            (&5000.into(), &4096.into())
        );
        assert_eq!(error.anthropic("req_1")["error"]["type"], "invalid_request_error");
    }

    #[test]
    fn each_interface_names_a_fault_its_own_way() {
        let error = ApiError::later(Kind::Unavailable, "loading", 5);
        assert_eq!(error.openai()["error"]["type"], "unavailable_error");
        assert_eq!(error.openai()["error"]["code"], 503);
        let body = error.anthropic("req_7");
        assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &"overloaded_error".into()));
        assert_eq!(body["request_id"], "req_7");
        let error = ApiError::field("top_p", "is 2, wanted 0 to 1");
        assert_eq!(error.message, "top_p is 2, wanted 0 to 1");
        assert_eq!(error.openai()["error"]["param"], "top_p");
    }
}
