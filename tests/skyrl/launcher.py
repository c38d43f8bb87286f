"""Start SkyRL 0.4.0's server of the Tinker protocol on CPU, so that tinker SDK 0.38.0 can talk to it.

Runs in the server's own environment (skyrl-requirements.txt), never in trainwright's. SkyRL 0.4.0 was made for SDK
0.25, Python 3.12 and `uv`; what is changed for that, all of it here:

1. the engine is started by this interpreter instead of `uv run`;
2. replies to `asample` carry `sample_sequence_ids`, which the SDK asserts;
3. `load_weights` may come without a model: it then makes one, as Tinker does;
4. a session can be finished;
5. on Python 3.11, `typing.TypedDict` is that of typing_extensions.
"""

import argparse
import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict

import skyrl.tinker.api as api
import uvicorn
from fastapi import Depends, Request
from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

ENGINE = (
    "import runpy, typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict; "
    "runpy.run_module('skyrl.tinker.engine', run_name='__main__', alter_sys=True)"
)
api._build_uv_run_cmd_engine = lambda parent, config: [sys.executable, "-c", ENGINE, *config_to_argv(config)]


SESSION = Depends(api.get_session)


def replaced(path: str) -> None:
    api.app.router.routes[:] = [route for route in api.app.router.routes if getattr(route, "path", "") != path]


class SampleFuture(api.FutureResponse):
    sample_sequence_ids: list[str]


upstream_asample = api.asample
replaced("/api/v1/asample")


@api.app.post("/api/v1/asample", response_model=SampleFuture)
async def asample(request: api.SampleRequest, http: Request, session=SESSION):
    future = await upstream_asample(request, http, session)
    ids = [f"{future.request_id}:{number}" for number in range(request.num_samples)]
    return SampleFuture(**future.model_dump(), sample_sequence_ids=ids)


@api.app.post("/api/v1/sessions/{session_id}/finish")
async def finish(session_id: str):
    return {}


upstream_load = api.load_weights
replaced("/api/v1/load_weights")


class LoadRequest(api.BaseModel):
    path: str
    optimizer: bool = True
    session_id: str | None = None
    model_seq_id: int | None = None


@api.app.post("/api/v1/load_weights", response_model=api.FutureResponse)
async def load_weights(request: LoadRequest, http: Request, session=SESSION):
    source = await api.get_model(session, api.types.TinkerPath.parse(request.path).primary_id)
    lora = api.types.LoraConfig.model_validate(source.lora_config)
    model_id = f"{request.session_id}:train:{request.model_seq_id}"
    future = await api.create_future(
        session=session,
        request_type=api.types.RequestType.CREATE_MODEL,
        model_id=model_id,
        request_data=api.types.CreateModelInput(lora_config=lora),
    )
    session.add(
        api.ModelDB(
            model_id=model_id,
            base_model=source.base_model,
            lora_config=lora.model_dump(),
            status="created",
            request_id=future,
            session_id=request.session_id,
        )
    )
    await session.commit()
    load = api.LoadWeightsRequest(model_id=model_id, path=request.path, optimizer=request.optimizer)
    return await upstream_load(load, http, session)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--port", type=int, required=True)
    options = vars(parser.parse_args())
    settings = {name: value for name, value in options.items() if name in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(settings)
    uvicorn.run(api.app, host="127.0.0.1", port=options["port"], log_level="warning")
