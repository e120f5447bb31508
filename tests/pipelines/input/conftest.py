"""An S3 server on this machine."""

import pytest


@pytest.fixture(scope="module")
def s3_url():
    """The URL of a bucket on an S3 server on this machine."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # it knows the server of an earlier module
        bucket = f"lake-{port}"  # and moto knows its buckets
        s3fs.S3FileSystem().mkdir(bucket)
        yield f"s3://{bucket}"
    server.stop()
